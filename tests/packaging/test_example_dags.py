"""The example Dags are found by Airflow and parse without an SDK, a connection or a database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest

import airflow_provider_sharedstream

FOLDER = Path(airflow_provider_sharedstream.__file__).with_name("example_dags")
CHECKOUT = Path(__file__).parents[2]


class Parsed(TypedDict):
    dags: dict[str, list[str]]
    errors: dict[str, str]


def parse(folder: Path, airflow_home: Path) -> Parsed:
    done = subprocess.run(
        [sys.executable, "-m", "tests.packaging.parse_example_dags", str(folder)],
        cwd=CHECKOUT,
        env={**os.environ, "AIRFLOW_HOME": str(airflow_home)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parsed: Parsed = json.loads(done.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> Parsed:
    return parse(FOLDER, tmp_path_factory.mktemp("airflow"))


def test_every_file_parses_and_holds_a_dag(parsed: Parsed) -> None:
    assert parsed["errors"] == {}
    files = {path.name for path in FOLDER.glob("example_*.py")}
    assert files
    assert set(parsed["dags"]) == files


def test_no_file_lies_beside_the_examples() -> None:
    others = [path.name for path in FOLDER.iterdir() if not path.name.startswith(("example_", "__"))]
    assert others == []


def test_no_two_examples_share_a_dag_id(parsed: Parsed) -> None:
    ids = [dag_id for of_file in parsed["dags"].values() for dag_id in of_file]
    assert len(ids) == len(set(ids))


def test_a_dag_file_that_needs_an_sdk_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "example_hasty.py").write_text("import aiokafka\nfrom airflow.sdk import DAG\nDAG('hasty')\n")
    assert "aiokafka is imported before a stream connects" in parse(folder, tmp_path)["errors"]["example_hasty.py"]


def test_airflow_finds_them(tmp_path: Path) -> None:
    program = (
        "from airflow.dag_processing.bundles.manager import DagBundlesManager\n"
        "bundle = DagBundlesManager().get_bundle('airflow-provider-sharedstream-example-dags')\n"
        "print()\n"
        "print(bundle.path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "True"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.splitlines()[-1]) == FOLDER

"""What is uploaded: an sdist from which the wheel builds, and a wheel that holds the package and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import Parser
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

import pytest

import airflow_provider_sharedstream
from airflow_provider_sharedstream.get_provider_info import get_provider_info

CHECKOUT = Path(__file__).parents[2]
PACKAGE = Path(airflow_provider_sharedstream.__file__).parent
VERSION = airflow_provider_sharedstream.__version__
NAME = "airflow_provider_sharedstream"


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel made from that sdist."""
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(CHECKOUT)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> ZipFile:
    return ZipFile(dist / f"{NAME}-{VERSION}-py3-none-any.whl")


@pytest.fixture(scope="module")
def metadata(wheel: ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"{NAME}-{VERSION}.dist-info/METADATA").decode())


def files_of_the_package() -> set[str]:
    return {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_the_package_and_nothing_else(wheel: ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if not name.startswith(f"{NAME}-{VERSION}.dist-info/")}
    assert shipped == files_of_the_package()
    assert {f"{NAME}/provider.yaml", f"{NAME}/py.typed"} <= shipped


def test_the_wheel_ships_the_example_dags(wheel: ZipFile) -> None:
    shipped = {name for name in wheel.namelist() if name.startswith(f"{NAME}/example_dags/")}
    assert any(re.fullmatch(rf"{NAME}/example_dags/example_\w+\.py", name) for name in shipped)


def test_the_wheel_carries_its_license_and_entry_point(wheel: ZipFile) -> None:
    info = f"{NAME}-{VERSION}.dist-info"
    assert wheel.read(f"{info}/licenses/LICENSE") == (CHECKOUT / "LICENSE").read_bytes()
    assert "[apache_airflow_provider]\nprovider_info = " in wheel.read(f"{info}/entry_points.txt").decode()


def test_the_sdist_holds_what_the_wheel_is_built_from(dist: Path) -> None:
    with tarfile.open(dist / f"{NAME}-{VERSION}.tar.gz") as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    beside = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert held == files_of_the_package() | beside


def test_the_provider_info_is_found_in_an_installed_wheel(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import {NAME}.get_provider_info as m; print(m.__file__); print(m.get_provider_info())",
        ],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    file, info = done.stdout.splitlines()
    assert Path(file).is_relative_to(tmp_path)
    assert info == repr(get_provider_info())


def requirements(metadata: Message, extra: str | None = None) -> set[str]:
    """The names required, without extras and versions: by the bare package, or by one extra."""
    names = set()
    for line in metadata.get_all("Requires-Dist", []):
        requirement, _, marker = line.partition(";")
        if extra is None and "extra ==" not in marker:
            names.add(re.split(r"[\[<>=! ]", requirement)[0])
        elif extra is not None and f"extra == '{extra}'" in marker:
            names.add(re.split(r"[<>=! ]", requirement)[0])
    return names


def test_the_bare_package_needs_airflow_and_little_else(metadata: Message) -> None:
    of_airflow = {re.split(r"[\[<>=!; ]", line)[0] for line in requires("apache-airflow-core") or ()}
    assert requirements(metadata) - of_airflow == {"apache-airflow-core", "jmespath"}


def test_all_is_every_extra_but_those_of_amazon(metadata: Message) -> None:
    extras = set(metadata.get_all("Provides-Extra", []))
    everything = set().union(*(requirements(metadata, extra) for extra in extras - {"all", "amazon", "kafka-msk"}))
    assert requirements(metadata, "all") == everything
    assert {"sqs", "kafka", "pubsub", "servicebus", "rest", "messaging", "amazon"} <= extras

"""Dag files with triggers in them, through Airflow's own Dag processor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import structlog
from airflow.dag_processing.dagbag import DagBag
from airflow.dag_processing.processor import DagFileParseRequest, DagFileParsingResult, _parse_file

from airflow_provider_sharedstream.triggers.arguments import REQUIRED
from tests.triggers.classes import CLASSES, COMMON, LARGEST, SMALLEST, Trigger

pytestmark = pytest.mark.parametrize("trigger_class", CLASSES)

DAG_FILE = """
from airflow.sdk import DAG, Asset, AssetWatcher
from {module} import {name}

trigger = {name}(**{arguments!r})
orders = Asset("orders", watchers=[AssetWatcher(name="orders_watcher", trigger=trigger)])

with DAG("orders", schedule=[orders]):
    pass
"""


def dag_file(folder: Path, trigger_class: Trigger, arguments: dict[str, Any]) -> Path:
    path = folder / "orders.py"
    text = DAG_FILE.format(module=trigger_class.__module__, name=trigger_class.__name__, arguments=arguments)
    path.write_text(text, encoding="utf-8")
    return path


def parsed(path: Path) -> DagFileParsingResult:
    """What the Dag processor makes of a file: it parses, and serialises what it finds."""
    request = DagFileParseRequest(file=str(path), bundle_path=path.parent, bundle_name="tests")
    result = _parse_file(request, structlog.get_logger())
    assert result is not None
    return result


def test_it_parses_and_is_serialised(trigger_class: Trigger, tmp_path: Path) -> None:
    for arguments in (SMALLEST[trigger_class.__name__], {**COMMON, **LARGEST[trigger_class.__name__]}):
        result = parsed(dag_file(tmp_path, trigger_class, arguments))
        assert not result.import_errors
        (dag,) = result.serialized_dags
        text = json.dumps(dag.data)
        assert f"{trigger_class.__module__}.{trigger_class.__name__}" in text
        assert "orders_watcher" in text


def test_a_wrong_argument_is_an_import_error(trigger_class: Trigger, tmp_path: Path) -> None:
    """With all that is needed to mend it, as the UI shows it."""
    wrong = {**SMALLEST[trigger_class.__name__], "batch_sise": 10, "on_error": "explode"}
    result = parsed(dag_file(tmp_path, trigger_class, wrong))
    assert not result.serialized_dags
    assert result.import_errors is not None
    ((file, text),) = result.import_errors.items()
    assert Path(file).name == "orders.py"
    assert f"{trigger_class.__name__}: " in text
    assert "on_error='explode': expected one of 'reject', 'skip', 'release'" in text
    assert "batch_sise=10: there is no such argument; did you mean 'batch_size'?" in text


def test_a_missing_argument_is_an_import_error(trigger_class: Trigger, tmp_path: Path) -> None:
    result = parsed(dag_file(tmp_path, trigger_class, {}))
    assert not result.serialized_dags
    assert result.import_errors is not None
    text = "".join(result.import_errors.values())
    assert f"{trigger_class.__name__}: " in text
    for name, argument in trigger_class.ARGUMENTS.items():
        if argument.default is REQUIRED:
            assert f"{name} is missing: expected " in text
            assert f", such as {name}={argument.example!r}" in text
    assert "expected " in text


def test_other_dags_of_the_file_are_not_concerned(trigger_class: Trigger, tmp_path: Path) -> None:
    path = dag_file(tmp_path, trigger_class, {**SMALLEST[trigger_class.__name__], "batch_size": 0})
    path.write_text(path.read_text() + '\nwith DAG("innocent"):\n    pass\n')
    result = parsed(path)
    assert [dag.dag_id for dag in result.serialized_dags] == ["innocent"]


def test_a_dag_bag_takes_it(trigger_class: Trigger, tmp_path: Path) -> None:
    dag_file(tmp_path, trigger_class, SMALLEST[trigger_class.__name__])
    bag = DagBag(tmp_path)
    assert bag.import_errors == {}
    assert list(bag.dags) == ["orders"]

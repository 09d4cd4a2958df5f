"""provider.yaml says what is there, and Airflow reads it."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from airflow.triggers.base import BaseEventTrigger

import airflow_provider_sharedstream
from airflow_provider_sharedstream import triggers
from airflow_provider_sharedstream.get_provider_info import get_provider_info

FILE = Path(airflow_provider_sharedstream.__file__).with_name("provider.yaml")
DIST = "airflow-provider-sharedstream"


def test_get_provider_info_is_provider_yaml() -> None:
    assert get_provider_info() == yaml.safe_load(FILE.read_text(encoding="utf-8"))


def test_each_call_returns_a_dictionary_of_its_own() -> None:
    get_provider_info()["name"] = "changed by the caller"
    assert get_provider_info()["name"] != "changed by the caller"


def test_it_is_valid_for_airflow() -> None:
    import airflow

    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)
    # Airflow's schema lets a misspelt key pass.
    assert set(get_provider_info()) <= set(schema["properties"])


def test_the_entry_point_leads_to_it() -> None:
    (point,) = [
        point
        for point in entry_points(group="apache_airflow_provider", name="provider_info")
        if point.dist is not None and point.dist.name == DIST
    ]
    assert point.load() is get_provider_info
    assert get_provider_info()["package-name"] == DIST


def module_paths(info: dict[str, Any]) -> Iterator[str]:
    for section in ("triggers", "hooks", "operators", "sensors", "bundles"):
        for entry in info.get(section, ()):
            yield from entry["python-modules"]
    yield from info.get("filesystems", ())


def object_paths(info: dict[str, Any]) -> Iterator[str]:
    for section in ("queues", "cli", "extra-links", "notifications", "executors"):
        yield from info.get(section, ())
    yield from (entry["hook-class-name"] for entry in info.get("connection-types", ()))
    yield from (entry["plugin-class"] for entry in info.get("plugins", ()))
    for entry in info.get("asset-uris", ()):
        yield from (path for key in ("handler", "factory", "to_openlineage_converter") if (path := entry.get(key)))


def test_everything_named_is_there() -> None:
    modules = list(module_paths(get_provider_info()))
    assert modules
    for module in modules:
        importlib.import_module(module)
    for path in object_paths(get_provider_info()):
        module, _, name = path.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), path


def test_every_trigger_module_is_named() -> None:
    there = set()
    for found in pkgutil.iter_modules(triggers.__path__, f"{triggers.__name__}."):
        classes = [value for value in vars(importlib.import_module(found.name)).values() if isinstance(value, type)]
        if any(issubclass(cls, BaseEventTrigger) and cls.__module__ == found.name for cls in classes):
            there.add(found.name)
    named = {module for entry in get_provider_info()["triggers"] for module in entry["python-modules"]}
    assert named == there - {f"{triggers.__name__}.base"}


def test_every_section_names_an_integration_that_is_described() -> None:
    info = get_provider_info()
    described = {entry["integration-name"] for entry in info["integrations"]}
    used = {entry["integration-name"] for section in ("triggers", "hooks") for entry in info.get(section, ())}
    assert used == described


def test_airflow_lists_the_provider(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "providers", "list", "--output", "json"],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {row["package_name"]: row["version"] for row in json.loads(done.stdout)}
    assert listed[DIST] == airflow_provider_sharedstream.__version__

"""The documentation says what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_provider_sharedstream import triggers
from airflow_provider_sharedstream.triggers.arguments import COMMON
from tests.packaging.tables import DOCS, TABLES, document

CHECKOUT = DOCS.parent


@pytest.mark.parametrize(("file", "name"), TABLES)
def test_a_table_of_the_code_is_current(file: str, name: str) -> None:
    text = (DOCS / file).read_text(encoding="utf-8")
    assert document(text, name, TABLES[file, name]) == text, "run: python -m tests.packaging.tables"
    assert TABLES[file, name].count("\n") > 5


def test_every_common_argument_is_documented_with_its_default_in_its_group() -> None:
    text = (DOCS / "arguments.md").read_text(encoding="utf-8")
    own, found, shared = text.partition("## Shared by the watchers of a source")
    assert found
    for part, scopes in ((own, {"filter"}), (shared, {"source", "stream"})):
        documented = dict(re.findall(r"^\| `(\w+)` \| `(.+?)` \|", part, re.MULTILINE))
        expected = {
            name: str(argument.default) if argument.default in (None, False) else json.dumps(argument.default)
            for name, argument in COMMON.items()
            if argument.scope in scopes
        }
        assert documented == expected


def test_the_readme_lists_every_source_and_no_other() -> None:
    listed = set(re.findall(r"`triggers\.(\w+)\.\w+`", (CHECKOUT / "README.md").read_text(encoding="utf-8")))
    beside = {"__init__", "arguments", "base", "mark", "pipelines", "watching"}
    assert listed == {file.stem for file in Path(triggers.__path__[0]).glob("*.py")} - beside


def test_the_quickstart_lists_every_extra() -> None:
    from importlib.metadata import metadata

    extras = set(metadata("airflow-provider-sharedstream").get_all("Provides-Extra") or ())
    listed = set(re.findall(r"^\| `([\w-]+)` \|", (DOCS / "quickstart.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == extras


def linked(file: Path) -> list[Path]:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", file.read_text(encoding="utf-8"))
    return [(file.parent / target).resolve() for target in targets]


@pytest.mark.parametrize("file", [CHECKOUT / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda file: file.name)
def test_links_lead_somewhere(file: Path) -> None:
    assert [str(target) for target in linked(file) if not target.exists()] == []

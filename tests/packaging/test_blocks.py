"""Each block of Python in the documents runs as it stands: its triggers are good, and its Dags parse."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from tests.packaging.tables import DOCS

FILES = [DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
FILES += sorted((DOCS / "sources").glob("*.md"))


def blocks() -> dict[str, str]:
    """Every block, by its place."""
    found = {}
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found[f"{file.relative_to(DOCS.parent)}:{text.count(chr(10), 0, match.start()) + 1}"] = match[1]
    return found


BLOCKS = blocks()


def test_there_is_one_in_each_page_of_a_source() -> None:
    pages = {place.partition(":")[0] for place in BLOCKS}
    assert {"README.md", "docs/quickstart.md", "docs/messages.md", "docs/arguments.md"} <= pages
    assert {f"docs/sources/{file.name}" for file in (DOCS / "sources").glob("*.md")} <= pages


@pytest.mark.parametrize("place", BLOCKS)
def test_it_runs_as_it_stands(place: str, tmp_path: Path) -> None:
    names: dict[str, object] = {"__name__": "block"}
    for statement in ast.parse(BLOCKS[place]).body:
        if isinstance(statement, ast.Expr):
            value = eval(compile(ast.Expression(statement.value), place, "eval"), names)
            if isinstance(value, BrokerEventTrigger):
                value.serialize()
        else:
            exec(compile(ast.Module([statement], []), place, "exec"), names)
    file = tmp_path / "block.py"
    file.write_text(BLOCKS[place], encoding="utf-8")
    bag = DagBag(tmp_path, safe_mode=False)
    assert bag.import_errors == {}
    assert len(bag.dags) == BLOCKS[place].count("DAG(")
    for dag in bag.dags.values():
        assert DagSerialization.to_dict(dag)

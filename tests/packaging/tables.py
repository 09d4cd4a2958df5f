"""Tables that the code holds, as they stand in the documentation, which a test holds to them.

``python -m tests.packaging.tables`` writes them anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from airflow_provider_sharedstream.stream.disposition import RULES
from airflow_provider_sharedstream.stream.metrics import METRICS

DOCS = Path(__file__).parents[2] / "docs"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


TABLES = {
    ("guarantees.md", "outcomes"): table(["what became of a message", "what the broker is told"], RULES),
    ("operations.md", "metrics"): table(
        ["metric", "kind", "labels", "meaning"],
        ((f"`{m.name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels), m.meaning) for m in METRICS),
    ),
}
"""By file and name."""


def document(text: str, name: str, content: str) -> str:
    """Return a file's text with the table between its marks replaced."""
    begin, end = f"<!-- {name}: written by tests/packaging/tables.py -->\n", f"<!-- end of {name} -->"
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"the marks of {name} are missing")
    return before + begin + content + end + after


if __name__ == "__main__":
    for (file, name), content in TABLES.items():
        path = DOCS / file
        path.write_text(document(path.read_text(encoding="utf-8"), name, content), encoding="utf-8")

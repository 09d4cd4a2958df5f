"""What is tracked depends on no machine: no address of a package index, no path of a developer's computer."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
# Written so that this file does not find itself.
INDEXES = [
    r"pypi[.]org/simple",
    r"files[.]pythonhosted[.]org",
    r"registry[.]npmjs[.]org",
    r"static[.]crates[.]io",
    r"repo1?[.]maven[.](apache[.])?org",
    r"proxy[.]golang[.]org",
    r"deb[.]debian[.]org",
    r"--(extra-)?index[-]url|--find[-]links|--trusted[-]host",
]
PATHS = [r"(?<![\w.])/(work|root|Users|home/\w+)/[\w.]"]
CONSTRAINTS = sorted(CHECKOUT.glob("constraints*.txt"))


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := CHECKOUT / name).is_file()]


@pytest.mark.parametrize("pattern", [*INDEXES, *PATHS])
def test_no_tracked_file_holds(pattern: str) -> None:
    files = tracked()
    assert CHECKOUT / "pyproject.toml" in files
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        for number, line in enumerate(text.splitlines(), 1):
            if file != Path(__file__) and re.search(pattern, line):
                found.append(f"{file.relative_to(CHECKOUT)}:{number}: {line.strip()[:120]}")
    assert found == []


@pytest.mark.parametrize("file", CONSTRAINTS, ids=lambda file: file.name)
def test_constraints_are_names_and_versions_only(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert len(lines) > 5
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line)] == []


def test_there_is_a_file_of_constraints_for_each_environment() -> None:
    assert [file.name for file in CONSTRAINTS] == [
        "constraints-amazon.txt",
        "constraints-ministack.txt",
        "constraints.txt",
    ]

"""What JUnit reports say: which tests of a run failed, and which of these passed when they were run again."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple


class Report(NamedTuple):
    """One run. Tests go by class and name."""

    passed: frozenset[str]
    failed: frozenset[str]
    skipped: frozenset[str]


def read(path: Path) -> Report:
    """Return what is in the report at ``path``: nothing where there is none."""
    passed: set[str] = set()
    failed: set[str] = set()
    skipped: set[str] = set()
    if path.exists():
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            name = f"{case.get('classname')}::{case.get('name')}"
            tags = {child.tag for child in case}
            # A test that passes and can't be torn down is there twice.
            (failed if tags & {"failure", "error"} else skipped if "skipped" in tags else passed).add(name)
    return Report(frozenset(passed - failed), frozenset(failed), frozenset(skipped - failed))


def again_of(path: Path) -> Path:
    """Return where the report of the second run of failed tests lies."""
    return path.with_name(f"{path.stem}-again.xml")

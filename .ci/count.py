"""Add up the JUnit reports named as arguments; the last line printed is ``N passed, N failed, N skipped``."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def main(reports: list[Path]) -> int:
    total = failed = skipped = 0
    without = []
    for report in reports:
        ran = 0
        if report.exists():
            for suite in ElementTree.parse(report).getroot().iter("testsuite"):
                ran += int(suite.get("tests", 0))
                failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
                skipped += int(suite.get("skipped", 0))
        total += ran
        if not ran:
            without.append(report)
    for report in without:
        print(f"{report}: no test ran")
    print(f"{total - failed - skipped} passed, {failed + len(without)} failed, {skipped} skipped", flush=True)
    return 1 if failed or without else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))

"""Add up the JUnit reports named as arguments; the last line printed is ``N passed, N failed, N skipped``."""

from __future__ import annotations

import sys
from pathlib import Path

from reports import again_of, read


def main(paths: list[Path]) -> int:
    passed = failed = skipped = 0
    for path in paths:
        report = read(path)
        if not any(report):
            print(f"{path}: no test ran")
            failed += 1
        second = report.failed & read(again_of(path)).passed
        for name in sorted(second):
            print(f"passed only when run again, alone: {name}")
        passed += len(report.passed) + len(second)
        failed += len(report.failed) - len(second)
        skipped += len(report.skipped)
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main([Path(argument) for argument in sys.argv[1:]]))

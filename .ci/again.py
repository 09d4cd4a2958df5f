"""Run what failed once more, alone, after everything else: ``again.py REPORT=PYTHON ...``.

Tests that wait for conditions can still run out of patience on a machine with too much to do. What fails alone too is a
failure; what passes now is named at the end, for somebody to look at.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from reports import again_of, read

MOST = 10
"""So many failures are no accident."""


def main(runs: list[tuple[Path, str]]) -> int:
    failed = {report: read(report).failed for report, _ in runs}
    if not 0 < sum(map(len, failed.values())) <= MOST:
        return 1
    for report, python in runs:
        if failed[report]:
            command = [python, "-m", "pytest", "-o", f"cache_dir=.local/cache/{report.stem}", "--last-failed"]
            command += ["--last-failed-no-failures", "none", "-m", "not long", f"--junit-xml={again_of(report)}"]
            subprocess.run(command, check=False)
            if failed[report] - read(again_of(report)).passed:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([(Path(report), python) for report, _, python in (one.partition("=") for one in sys.argv[1:])]))

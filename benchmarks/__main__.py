"""Runs all measurements, one after the other: ``make bench``, or ``make bench ARGS='kafka pubsub'``.

The two comparisons with official triggers are left out: each says itself which environment it needs.
"""

from __future__ import annotations

import subprocess
import sys

ALL = ("decode_match", "kafka", "pubsub", "service_bus", "sqs")

if __name__ == "__main__":
    wanted = sys.argv[1:] or ALL
    failed = []
    for name in wanted:
        print(f"==> {name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False).returncode:
            failed.append(name)
    sys.exit(f"failed: {', '.join(failed)}" if failed else None)

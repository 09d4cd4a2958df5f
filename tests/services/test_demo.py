from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.sqs import CHECKOUT


@pytest.mark.slow
def test_the_demo_succeeds_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "demo"],
        env={**os.environ, "SHAREDSTREAM_DEMO_HOME": str(tmp_path), "KEEP": ""},
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert re.search(r"✓ example_sqs_orders +44/44 +success", done.stdout)
    assert "because: the total of an order is a number, not 'twelve and a half'" in done.stdout
    assert [process.cmdline() for process in psutil.process_iter() if _is_of(tmp_path, process)] == []


def _is_of(home: Path, process: psutil.Process) -> bool:
    try:
        return process.environ().get("AIRFLOW_HOME", "").startswith(str(home))
    except psutil.Error:
        return False

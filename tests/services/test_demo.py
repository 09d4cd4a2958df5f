from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.process import wait_until
from services.sqs import CHECKOUT


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def demo(tmp_path: Path, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """One with KEEP=1."""
    with output.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "demo"],
            env={**os.environ, "SHAREDSTREAM_DEMO_HOME": str(tmp_path), "KEEP": "1"},
            cwd=CHECKOUT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=120)


@pytest.mark.slow
def test_the_demo_succeeds_takes_a_dag_of_ones_own_and_leaves_nothing_running(
    tmp_path: Path, output: Path, demo: subprocess.Popen[bytes]
) -> None:
    assert wait_until(lambda: demo.poll() is not None or "until Ctrl-C" in output.read_text(), limit_seconds=1200)
    said = output.read_text()
    assert demo.poll() is None, said[-8000:]
    assert re.search(r"✓ example_sqs_orders +44/44 +success", said)
    assert "because: the total of an order is a number, not 'twelve and a half'" in said

    own_dags = Path(found(r"^your own Dags +(.+)$", said))
    (own_dags / "mine.py").write_text(the_quickstarts())
    airflow = shlex.split(found(r"^airflow +(.+) dags list-import-errors$", said))
    runs = [*airflow, "dags", "list-runs", "big_orders", "--output", "plain"]
    send = found(r"^A message to your queue:\n +(.+)$", said)
    subprocess.run(send, shell=True, check=True, timeout=120)

    def started() -> bool:
        listed = subprocess.run(runs, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
        return "success" in listed.stdout

    assert wait_until(started, limit_seconds=300, every_seconds=1), output.read_text()[-8000:]
    logs = Path(found(r"^logs +(.+)$", said))
    assert "'amount': 250" in "".join(file.read_text() for file in logs.glob("dag_id=big_orders/**/*.log"))

    # Not SIGINT: whatever runs behind a shell ignores it.
    demo.terminate()
    assert demo.wait(timeout=120) == 128 + signal.SIGTERM, output.read_text()[-8000:]
    assert (own_dags / "mine.py").exists()
    assert [process.cmdline() for process in psutil.process_iter() if _is_of(tmp_path, process)] == []


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    assert match, text[-8000:]
    return match[1]


def the_quickstarts() -> str:
    """The Dag file in docs/quickstart.md."""
    return found(r"(?s)^```python\n(.+?)^```", (CHECKOUT / "docs" / "quickstart.md").read_text(encoding="utf-8"))


def _is_of(home: Path, process: psutil.Process) -> bool:
    try:
        return process.environ().get("AIRFLOW_HOME", "").startswith(str(home))
    except psutil.Error:
        return False

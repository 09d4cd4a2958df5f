from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from services.process import LocalProcess, ServiceUnavailable, free_port, http_ok, listening, require_real, wait_until

PARENT_AND_CHILD = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import os, time; os.setpgid(0, 0); time.sleep(600)"])
print("child", child.pid, flush=True)
{more}
time.sleep(600)
"""


def http_server(folder: Path, port: int) -> LocalProcess:
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    return LocalProcess(
        "http", command, log_file=folder / "http.log", cwd=folder, ready=lambda: http_ok(f"http://127.0.0.1:{port}")
    )


def parent(folder: Path, more: str = "") -> LocalProcess:
    log = folder / "parent.log"
    return LocalProcess(
        "parent",
        [sys.executable, "-c", PARENT_AND_CHILD.format(more=more)],
        log_file=log,
        ready=lambda: "child" in log.read_text(),
        stop_seconds=1,
    )


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_starts_ready_and_restarts_on_the_same_port(tmp_path: Path) -> None:
    port = free_port()
    with http_server(tmp_path, port) as server:
        first = server.pid
        assert http_ok(f"http://127.0.0.1:{port}")
        server.restart()
        assert server.pid != first
        assert http_ok(f"http://127.0.0.1:{port}")
        server.kill()
        assert not server.running
        assert not listening(port)
        server.start()
        assert listening(port)
    assert not listening(port)


@pytest.mark.parametrize("more", ["", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_stop_takes_the_children_along_even_those_with_a_group_of_their_own(tmp_path: Path, more: str) -> None:
    process = parent(tmp_path, more)
    process.start()
    (child,) = process.children()
    process.stop()
    assert gone(child.pid)
    assert not process.running


def test_kill_alone_leaves_the_children_for_stop(tmp_path: Path) -> None:
    process = parent(tmp_path)
    process.start()
    (child,) = process.children()
    process.kill(alone=True)
    assert not process.running
    assert not gone(child.pid)
    process.stop()
    assert gone(child.pid)


def test_a_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    early = LocalProcess("early", ["sh", "-c", "echo no such disk; exit 3"], log_file=tmp_path / "a", ready=bool)
    with pytest.raises(RuntimeError, match=r"early ended with 3(.|\n)*no such disk"):
        early.start()
    never = LocalProcess("never", ["sleep", "600"], log_file=tmp_path / "b", ready=bool, ready_seconds=0.3)
    with pytest.raises(RuntimeError, match="never is not ready after 0.3 s"):
        never.start()
    assert not never.running


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGKILL)", "raise SystemExit(0)"])
def test_nothing_outlives_the_program_that_started_it(tmp_path: Path, end: str) -> None:
    program = f"""
import os, signal
from pathlib import Path
from services.process import LocalProcess
process = LocalProcess("sleep", ["sleep", "600"], log_file=Path({str(tmp_path / "log")!r}))
process.start()
print(process.pid, flush=True)
{end}
"""
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode in (0, -signal.SIGKILL)
    assert wait_until(lambda: gone(int(ended.stdout)), limit_seconds=10)


def test_the_environment_can_be_added_to_and_removed_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TO_REMOVE", "x")
    log = tmp_path / "log"
    process = LocalProcess(
        "env", ["sh", "-c", "env; sleep 600"], log_file=log, env={"ADDED": "y", "TO_REMOVE": None}, ready=log.exists
    )
    with process:
        assert wait_until(lambda: "ADDED=y" in log.read_text(), limit_seconds=10)
        assert "TO_REMOVE" not in log.read_text()


class StandIn:
    name = "thing"
    taken = "a sketch"
    real = False

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...


def test_a_stand_in_is_refused_where_the_real_thing_is_demanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHAREDSTREAM_DEMAND_REAL", raising=False)
    service = StandIn()
    assert require_real(service) is service
    monkeypatch.setitem(os.environ, "SHAREDSTREAM_DEMAND_REAL", "1")
    with pytest.raises(ServiceUnavailable, match="thing would be served by a sketch"):
        require_real(service)

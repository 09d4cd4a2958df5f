"""A server as a local process that starts ready, stops whole and never outlives the program that started it."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import psutil

from services.process_tree import alive, descendants, dismiss, guard, session
from services.started import Started

DEMAND_REAL = "SHAREDSTREAM_DEMAND_REAL"
"""Set to 1 (by `.ci/run`) to refuse every stand-in that is known to differ from the real thing."""


class ServiceUnavailable(RuntimeError):
    """Nothing on this machine can provide the service; the message says what to install or set."""


class Service(Protocol):
    """What tests need of any server, however it came to be."""

    @property
    def name(self) -> str:
        """Short name: "sqs", "kafka"."""

    @property
    def taken(self) -> str:
        """One sentence for a human: what was taken, e.g. "local process: Apache Kafka 4.1.1"."""

    @property
    def real(self) -> bool:
        """Whether it behaves enough like the real service for a test's result to count."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def restart(self) -> None: ...


ServiceT = TypeVar("ServiceT", bound=Service)


def require_real(service: ServiceT) -> ServiceT:
    """Return `service`; raise ServiceUnavailable where SHAREDSTREAM_DEMAND_REAL=1 and it is only a stand-in."""
    if os.environ.get(DEMAND_REAL) == "1" and not service.real:
        raise ServiceUnavailable(f"{DEMAND_REAL}=1, but {service.name} would be served by {service.taken}")
    return service


def free_port() -> int:
    """A TCP port of 127.0.0.1 that was free a moment ago and that the kernel won't hand out again at once."""
    with socket.socket() as probe:
        # Without SO_REUSEADDR the next free_port() could return the same port before the server has bound it.
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int, host: str = "127.0.0.1") -> bool:
    """Whether something accepts TCP connections there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def http_ok(url: str) -> bool:
    """Whether a GET answers with a status below 400."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status) < 400
    except (urllib.error.URLError, OSError):
        return False


def log_tail(path: Path, lines: int = 40) -> str:
    """The last lines of a log, or a remark that there are none."""
    if not path.exists():
        return f"(no log at {path})"
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - 200 * lines))
        text = log.read().decode("utf-8", "replace")
    return "\n".join(text.splitlines()[-lines:]) or f"({path} is empty)"


def environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """This program's variables with `changes` on top; None removes one."""
    merged: dict[str, str | None] = {**os.environ, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def wait_until(condition: Callable[[], bool], *, limit_seconds: float, every_seconds: float = 0.1) -> bool:
    """Ask until the condition holds; False when the limit passed first."""
    end = time.monotonic() + limit_seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_seconds)
    return True


class LocalProcess(Started):
    """One command in a session of its own, together with all of its children.

    :param name: what messages call it.
    :param command: program and arguments; looked up in PATH when it has no slash.
    :param log_file: takes stdout and stderr, appended; its folder is made.
    :param env: variables set on top of this process's own; None as a value removes one.
    :param cwd: working directory; default: this process's.
    :param ready: asked until it returns True; default: ready as soon as it runs.
    :param ready_seconds: limit for that. An early exit fails at once.
    :param stop_seconds: how long an orderly stop may take before KILL.
    :param stop_signal: asks the command for an orderly stop.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        ready: Callable[[], bool] | None = None,
        ready_seconds: float = 120.0,
        stop_seconds: float = 20.0,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_file = log_file
        self.env = dict(env or {})
        self.cwd = cwd
        self.ready = ready
        self.ready_seconds = ready_seconds
        self.stop_seconds = stop_seconds
        self.stop_signal = stop_signal
        self.started_in_seconds = 0.0
        self._launched = 0.0
        self._seen: set[psutil.Process] = set()
        self._end_expected = False
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the command itself; raises RuntimeError when it was not started."""
        if self._process is None:
            raise RuntimeError(f"{self.name} is not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def ended_by_itself(self) -> bool:
        """Whether it ran and is gone, and neither `stop` nor `kill` nor `expect_end` was called."""
        return self._process is not None and not self.running and not self._end_expected

    def expect_end(self) -> None:
        """Say that it is about to end, for a reason that lies elsewhere."""
        self._end_expected = True

    def start(self) -> None:
        """Start and wait until ready; raises RuntimeError with the end of the log otherwise."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already, as process {self.pid}")
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start without waiting; `wait_ready` waits. So several can start side by side."""
        self.stop()
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("ab") as log:
            self._launched = time.monotonic()
            self._end_expected = False
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env=environment(self.env),
                start_new_session=True,
            )
        _running.add(self)
        self._guard = guard(self._process.pid)

    def wait_ready(self) -> None:
        """Wait for readiness; on failure end the process and raise RuntimeError with the end of its log."""
        assert self._process is not None
        end = self._launched + self.ready_seconds
        while self.ready is not None and not self.ready():
            code = self._process.poll()
            if code is not None or time.monotonic() > end:
                why = f"ended with {code}" if code is not None else f"is not ready after {self.ready_seconds:g} s"
                self.stop()
                raise RuntimeError(f"{self.name} {why}; {self.log_file} ends with:\n{log_tail(self.log_file)}")
            time.sleep(0.1)
        self.started_in_seconds = time.monotonic() - self._launched

    def stop(self) -> None:
        """Ask the command to stop, then its children that are left, then KILL; does nothing when it isn't running."""
        if self._process is None:
            return
        process = self._process
        self._members()
        self.terminate()
        wait_until(lambda: process.poll() is not None, limit_seconds=self.stop_seconds, every_seconds=0.05)
        self._signal(signal.SIGTERM)
        wait_until(lambda: not self._members(), limit_seconds=min(5.0, self.stop_seconds), every_seconds=0.05)
        self._end()

    def terminate(self) -> None:
        """Ask the command alone, as a service supervisor would, and don't wait; `stop` still clears up."""
        self.expect_end()
        if self.running:
            os.kill(self.pid, self.stop_signal)

    def kill(self, *, alone: bool = False) -> None:
        """KILL -9 for the command and its children; `alone`: for the command alone, its children stay until `stop`."""
        if self._process is None:
            return
        self._members()
        self.expect_end()
        if alone:
            self._process.kill()
            self._process.wait()
        else:
            self._end()

    def restart(self) -> None:
        """Stop and start with the same command, so on the same port and data."""
        self.stop()
        self.start()

    def children(self) -> list[psutil.Process]:
        """All that the command started and that still runs, directly or not, oldest first."""
        members = [member for member in self._members() if member.pid != self.pid]
        return sorted(members, key=lambda member: (member.create_time(), member.pid))

    def tail(self, lines: int = 40) -> str:
        return log_tail(self.log_file, lines)

    def _end(self) -> None:
        assert self._process is not None
        # A process may be forked between the listing and the signal, hence until none is left.
        while self._members():
            self._signal(signal.SIGKILL)
            time.sleep(0.02)
        self._process.wait()
        self._seen.clear()
        self._process = None
        _running.discard(self)
        if self._guard is not None:
            dismiss(self._guard)
            self._guard = None

    def _members(self) -> list[psutil.Process]:
        """What runs of the command and its children: of its session, of its descendants, and what was seen earlier."""
        assert self._process is not None
        self._process.poll()
        # Neither is enough: an orphan is nobody's descendant, and PostgreSQL's children make sessions of their own.
        self._seen |= session(self._process.pid) | descendants(self._process.pid)
        self._seen = {member for member in self._seen if alive(member)}
        return list(self._seen)

    def _signal(self, number: int) -> None:
        for member in self._members():
            try:
                member.send_signal(number)
            except psutil.NoSuchProcess:
                pass


_running: weakref.WeakSet[LocalProcess] = weakref.WeakSet()
_owner = os.getpid()


@atexit.register
def _stop_all() -> None:
    # A forked child that exits normally gets here too, and these aren't its processes.
    if os.getpid() == _owner:
        for process in list(_running):
            process.stop()

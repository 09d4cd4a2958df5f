"""Processes that are killed, that share a directory, or that may not do what they have to."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.airflow_loop import LONG_SECONDS, repeated
from tests.directory.conftest import QUICK, Inbox

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Before a command: permissions hold for it, though it runs as root."""


def wait(condition: Callable[[], Any], what: str, seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


class Process:
    """A triggerer of its own.

    :param root: where it notes what it has stored and said.
    :param before: what stands before the command.
    :param given: see `tests/directory/process.py`.
    """

    def __init__(self, root: Path, trigger: dict[str, Any], *, before: Sequence[str] = (), **given: Any) -> None:
        self.stored = root / "stored.jsonl"
        self.said = root / "said.log"
        home = root / "airflow"
        for folder in (root, home):
            folder.mkdir(exist_ok=True)
        self.stored.touch()
        arguments = {"trigger": {**QUICK, **trigger}, "stored": str(self.stored), **given}
        environment = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        with self.said.open("a") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-m", "tests.directory.process", json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
            )

    @property
    def ids(self) -> list[str]:
        # The last line may be half-written when the process was killed; it was not confirmed then either.
        return [json.loads(line)["id"] for line in self.stored.read_text().splitlines() if line.endswith("}")]

    @property
    def names(self) -> set[str]:
        return {identity.rpartition("@")[0] for identity in self.ids}

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(LONG_SECONDS)

    def lines(self, *words: str) -> list[str]:
        return [line for line in self.said.read_text().splitlines() if all(word in line for word in words)]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start_one(name: str, trigger: dict[str, Any], **given: Any) -> Process:
        started.append(Process(tmp_path / name, trigger, **given))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.kill()


def watching(inbox: Inbox, **more: Any) -> dict[str, Any]:
    return {"directory": str(inbox.path), "pattern": "*", **more}


def test_killed_between_storing_and_deleting_it_comes_again_with_the_same_id(
    inbox: Inbox, start: Callable[..., Process]
) -> None:
    inbox.put("a.csv")
    first = start("one", watching(inbox), confirm=False)
    wait(lambda: first.ids, "the event stored")
    first.kill()
    assert inbox.names == ["a.csv"]
    second = start("one", watching(inbox))
    wait(lambda: inbox.names == [], "an empty directory")
    assert second.stop() == 0
    assert len(second.ids) == 2
    assert len(set(second.ids)) == 1


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost(inbox: Inbox, start: Callable[..., Process]) -> None:
    names: set[str] = set()
    for kill in range(5):
        for n in range(500):
            names.add(f"{kill}-{n:03}.csv")
            inbox.put(f"{kill}-{n:03}.csv")
        process = start("one", watching(inbox, archive_directory=str(inbox.archive), batch_size=10))
        before = len(process.ids)
        wait(lambda before=before, process=process: len(process.ids) > before, "something stored")
        time.sleep(random.random())
        process.kill()
        there = set(inbox.names)
        assert names - there <= process.names, "gone without an event"
    process = start("one", watching(inbox, archive_directory=str(inbox.archive)))
    wait(lambda: inbox.names == [], "an empty directory")
    assert process.stop() == 0
    assert process.names == names
    assert len(os.listdir(inbox.archive)) == len(names)


@pytest.mark.slow
def test_two_processes_on_one_directory_lose_nothing(inbox: Inbox, start: Callable[..., Process]) -> None:
    processes = [start(name, watching(inbox)) for name in ("one", "two")]
    for process in processes:
        wait(lambda process=process: process.lines("ready"), "both processes")
    names = {f"{n:04}.csv" for n in range(600)}
    for name in sorted(names):
        inbox.put(name)
        time.sleep(0.003)
    wait(lambda: inbox.names == [], "an empty directory")
    for process in processes:
        assert process.stop() == 0
        assert not process.lines("Traceback")
        assert not repeated(process.ids)
    assert processes[0].names | processes[1].names == names


@pytest.fixture
def unprivileged() -> Sequence[str]:
    return UNPRIVILEGED if os.geteuid() == 0 else ()


@pytest.mark.parametrize(
    ("argument", "mode", "words"),
    [
        ("directory", 0o000, "may not read it"),
        ("directory", 0o555, "may not write to it"),
        ("archive_directory", 0o555, "may not write to it"),
        ("rejected_directory", 0o555, "may not write to it"),
    ],
)
def test_a_directory_that_may_not_be_used(
    inbox: Inbox, start: Callable[..., Process], unprivileged: Sequence[str], argument: str, mode: int, words: str
) -> None:
    inbox.put("a.csv")
    places = {
        "directory": inbox.path,
        "archive_directory": inbox.archive,
        "rejected_directory": inbox.rejected,
    }
    for name, place in places.items():
        place.chmod(mode if name == argument else 0o777)
    trigger = watching(inbox, **{name: str(place) for name, place in places.items()})
    process = start("one", trigger, before=unprivileged)
    wait(lambda: process.lines("can't be used"), "a clear line")
    time.sleep(3)
    # One line, with a long time before the next.
    (line,) = process.lines("can't be used")
    assert f"{argument}='{places[argument]}'" in line
    assert words in line
    assert not process.lines("Traceback")
    assert process.stop() == 0
    places[argument].chmod(0o777)
    assert inbox.names == ["a.csv"]
    assert process.ids == []


def test_a_file_that_may_not_be_read_holds_up_no_other(
    inbox: Inbox, start: Callable[..., Process], unprivileged: Sequence[str]
) -> None:
    inbox.put("closed.json", '{"name": 1}').chmod(0o000)
    inbox.put("open.json", '{"name": 2}')
    inbox.path.chmod(0o777)
    process = start("one", watching(inbox, content_up_to_bytes=100), before=unprivileged)
    wait(lambda: inbox.names == ["closed.json"], "the other file")
    time.sleep(1)
    assert process.stop() == 0
    assert process.names == {"open.json"}
    assert len(process.lines("can't be read", "closed.json")) == 1


@pytest.mark.slow
def test_permission_lost_while_running_and_given_back(
    inbox: Inbox, start: Callable[..., Process], unprivileged: Sequence[str]
) -> None:
    inbox.path.chmod(0o777)
    process = start("one", watching(inbox), before=unprivileged)
    inbox.put("a.csv")
    wait(lambda: inbox.names == [], "the first file")
    # What is with the watchers by now can't be deleted.
    inbox.put("b.csv")
    wait(lambda: "b.csv" in process.names, "the second file's event")
    inbox.path.chmod(0o555)
    inbox.put("c.csv")
    wait(lambda: process.lines("may not"), "a clear line")
    time.sleep(5)
    assert len(process.lines("may not")) <= 4
    inbox.path.chmod(0o777)
    wait(lambda: inbox.names == [], "an empty directory", 3 * LONG_SECONDS)
    assert process.stop() == 0
    assert process.names == {"a.csv", "b.csv", "c.csv"}

"""Processes that are killed, that share a directory, or that may not do what they have to."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.airflow_loop import LONG_SECONDS, repeated
from tests.directory.conftest import Inbox
from tests.triggerer_process import TriggererProcess, wait

UNPRIVILEGED = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
"""Before a command: permissions hold for it, though it runs as root."""

Start = Callable[..., TriggererProcess]


@pytest.fixture
def start(inbox: Inbox, tmp_path: Path) -> Iterator[Start]:
    """Starts a triggerer by its name; takes arguments of the trigger."""
    with ExitStack() as started:

        def start_one(name: str, *, confirm: bool = True, before: Sequence[str] = (), **given: Any) -> TriggererProcess:
            watcher = inbox.trigger(pattern="*", **given)
            return started.enter_context(TriggererProcess(tmp_path / name, watcher, confirm=confirm, before=before))

        yield start_one


def stored_names(process: TriggererProcess) -> set[str]:
    """Of the files that it has stored."""
    return {identity.rpartition("@")[0] for identity in process.ids}


def test_killed_between_storing_and_deleting_it_comes_again_with_the_same_id(inbox: Inbox, start: Start) -> None:
    inbox.put("a.csv")
    first = start("one", confirm=False)
    wait(lambda: first.ids, "the event stored")
    first.kill()
    assert inbox.names == ["a.csv"]
    second = start("one")
    wait(lambda: inbox.names == [], "an empty directory")
    second.stop()
    assert len(second.ids) == 2
    assert len(set(second.ids)) == 1


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_lost(inbox: Inbox, start: Start) -> None:
    names: set[str] = set()
    for kill in range(5):
        for n in range(500):
            names.add(f"{kill}-{n:03}.csv")
            inbox.put(f"{kill}-{n:03}.csv")
        process = start("one", archive_directory=str(inbox.archive), batch_size=10)
        before = len(process.ids)
        wait(lambda before=before, process=process: len(process.ids) > before, "something stored")
        time.sleep(random.random())
        process.kill()
        there = set(inbox.names)
        assert names - there <= stored_names(process), "gone without an event"
    process = start("one", archive_directory=str(inbox.archive))
    wait(lambda: inbox.names == [], "an empty directory")
    process.stop()
    assert stored_names(process) == names
    assert len(os.listdir(inbox.archive)) == len(names)


@pytest.mark.slow
def test_two_processes_on_one_directory_lose_nothing(inbox: Inbox, start: Start) -> None:
    processes = [start(name) for name in ("one", "two")]
    for process in processes:
        wait(lambda process=process: process.lines("ready"), "both processes")
    names = {f"{n:04}.csv" for n in range(600)}
    for name in sorted(names):
        inbox.put(name)
        time.sleep(0.003)
    wait(lambda: inbox.names == [], "an empty directory")
    for process in processes:
        process.stop()
        assert not process.lines("Traceback")
        assert not repeated(process.ids)
    assert stored_names(processes[0]) | stored_names(processes[1]) == names


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
    inbox: Inbox, start: Start, unprivileged: Sequence[str], argument: str, mode: int, words: str
) -> None:
    inbox.put("a.csv")
    places = {
        "directory": inbox.path,
        "archive_directory": inbox.archive,
        "rejected_directory": inbox.rejected,
    }
    for name, place in places.items():
        place.chmod(mode if name == argument else 0o777)
    process = start("one", before=unprivileged, **{name: str(place) for name, place in places.items()})
    wait(lambda: process.lines("can't be used"), "a clear line")
    time.sleep(3)
    # One line, with a long time before the next.
    (line,) = process.lines("can't be used")
    assert f"{argument}='{places[argument]}'" in line
    assert words in line
    assert not process.lines("Traceback")
    process.stop()
    places[argument].chmod(0o777)
    assert inbox.names == ["a.csv"]
    assert process.ids == []


def test_a_file_that_may_not_be_read_holds_up_no_other(inbox: Inbox, start: Start, unprivileged: Sequence[str]) -> None:
    inbox.put("closed.json", '{"name": 1}').chmod(0o000)
    inbox.put("open.json", '{"name": 2}')
    inbox.path.chmod(0o777)
    process = start("one", content_up_to_bytes=100, before=unprivileged)
    wait(lambda: inbox.names == ["closed.json"], "the other file")
    time.sleep(1)
    process.stop()
    assert stored_names(process) == {"open.json"}
    assert len(process.lines("can't be read", "closed.json")) == 1


@pytest.mark.slow
def test_permission_lost_while_running_and_given_back(inbox: Inbox, start: Start, unprivileged: Sequence[str]) -> None:
    inbox.path.chmod(0o777)
    process = start("one", before=unprivileged)
    inbox.put("a.csv")
    wait(lambda: inbox.names == [], "the first file")
    # What is with the watchers by now can't be deleted.
    inbox.put("b.csv")
    wait(lambda: "b.csv" in stored_names(process), "the second file's event")
    inbox.path.chmod(0o555)
    inbox.put("c.csv")
    wait(lambda: process.lines("may not"), "a clear line")
    time.sleep(5)
    assert len(process.lines("may not")) <= 4
    inbox.path.chmod(0o777)
    wait(lambda: inbox.names == [], "an empty directory", 3 * LONG_SECONDS)
    process.stop()
    assert stored_names(process) == {"a.csv", "b.csv", "c.csv"}

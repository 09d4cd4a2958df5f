"""Directories that aren't there, go away, hang, or are full."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.directory import adapter, places
from airflow_provider_sharedstream.brokers.directory.adapter import DirectoryConsumer
from airflow_provider_sharedstream.brokers.directory.places import Place, PlaceChanged
from airflow_provider_sharedstream.brokers.directory.thread import OneThread, StillRunning, in_thread
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from tests.airflow_loop import LONG_SECONDS, triggerer, until
from tests.directory.conftest import Inbox, RecordedConsumer


def unusable(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "can't be used" in record.getMessage()]


@pytest.mark.slow
async def test_a_missing_directory_is_one_line_and_works_once_it_is_there(
    inbox: Inbox, caplog: pytest.LogCaptureFixture
) -> None:
    inbox.path.rmdir()
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*"))
        await until(lambda: unusable(caplog), "a clear line")
        inbox.path.mkdir()
        inbox.put("a.csv")
        await until(lambda: watcher.ids and inbox.names == [], "the file", 2 * LONG_SECONDS)
    (line,) = unusable(caplog)
    assert f"directory='{inbox.path}'" in line
    assert "no such directory" in line
    assert watcher.restarts == 0


async def test_a_directory_that_is_a_file(inbox: Inbox, caplog: pytest.LogCaptureFixture) -> None:
    inbox.path.rmdir()
    inbox.path.write_text("")
    async with triggerer() as running:
        running.start(inbox.trigger(pattern="*"))
        await until(lambda: unusable(caplog), "a clear line")
        await asyncio.sleep(2)
    (line,) = unusable(caplog)
    assert f"directory='{inbox.path}'" in line
    assert "a directory is expected" in line


@pytest.mark.parametrize("argument", ["archive_directory", "rejected_directory"])
async def test_a_missing_place_to_move_files_to(inbox: Inbox, caplog: pytest.LogCaptureFixture, argument: str) -> None:
    missing = inbox.path.with_name("missing")
    inbox.put("a.csv")
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*", **{argument: missing}))
        await until(lambda: unusable(caplog), "a clear line")
        assert not watcher.ids, "taken although it can't be put away"
    assert f"{argument}='{missing}'" in unusable(caplog)[0]
    assert not missing.exists(), "what may be an unmounted directory was made"


async def test_a_link_to_the_directory_itself_is_no_archive(inbox: Inbox) -> None:
    link = inbox.path.with_name("link")
    link.symlink_to(inbox.path)
    consumer = DirectoryConsumer(str(inbox.path), archive_directory=str(link))
    with pytest.raises(SourceUnavailable, match="archive_directory=.*itself"):
        await consumer.connect()


async def test_two_names_of_one_directory_are_one_source(inbox: Inbox) -> None:
    link = inbox.path.with_name("link")
    link.symlink_to(inbox.path)
    one, two = DirectoryConsumer(str(inbox.path)), DirectoryConsumer(str(link))
    await one.connect()
    await two.connect()
    assert one.identity == two.identity


async def test_unmounted_in_between_nothing_is_taken_as_gone(inbox: Inbox) -> None:
    away = inbox.path.with_name("away")
    consumer = DirectoryConsumer(str(inbox.path), poke_interval=0.1, settle_seconds=0)
    await consumer.connect()
    inbox.put("a.csv")
    (delivery,) = await consumer.receive(10)
    inbox.path.rename(away)
    with pytest.raises(PlaceChanged, match="gone"):
        await consumer.settle(Disposition.ACCEPT, [delivery])
    inbox.path.mkdir()
    with pytest.raises(PlaceChanged, match="another directory"):
        await consumer.settle(Disposition.ACCEPT, [delivery])
    with pytest.raises(PlaceChanged, match="another directory"):
        await consumer.receive(10)
    inbox.path.rmdir()
    away.rename(inbox.path)
    assert not await consumer.settle(Disposition.ACCEPT, [delivery])
    assert inbox.names == []
    await consumer.close()


async def test_unmounted_nothing_is_archived_under_the_mount_point(inbox: Inbox) -> None:
    away = inbox.archive.with_name("away")
    consumer = DirectoryConsumer(
        str(inbox.path), poke_interval=0.1, settle_seconds=0, archive_directory=str(inbox.archive)
    )
    await consumer.connect()
    inbox.put("a.csv")
    (delivery,) = await consumer.receive(10)
    inbox.archive.rename(away)
    inbox.archive.mkdir()
    with pytest.raises(PlaceChanged, match="archive_directory"):
        await consumer.settle(Disposition.ACCEPT, [delivery])
    assert inbox.names == ["a.csv"]
    assert os.listdir(inbox.archive) == []
    await consumer.close()


def test_a_directory_made_anew_is_taken_as_meant_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    path = tmp_path / "place"
    path.mkdir()
    place = Place("directory", str(path))
    place.check(os.R_OK)
    path.rename(tmp_path / "old")
    path.mkdir()
    for _ in range(3):
        with pytest.raises(PlaceChanged):
            place.verify()
        now += places.CHANGED_SECONDS / 3
    place.verify()
    place.verify()
    assert caplog.text.count("taken as meant") == 1


class Hang:
    """Makes each look into one directory hang, as on a mount whose server is gone."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = str(path)
        self.answers = threading.Event()
        self.answers.set()
        self.hanging = 0
        self._scandir = os.scandir
        monkeypatch.setattr(os, "scandir", self.scandir)

    def scandir(self, path: Any = ".") -> Any:
        if str(path) == self.path:
            self.hanging += 1
            self.answers.wait()
            self.hanging -= 1
        return self._scandir(path)


@pytest.fixture
def hang(inbox: Inbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    made = Hang(inbox.path, monkeypatch)
    yield made
    made.answers.set()


async def test_a_hanging_mount_holds_up_nobody_and_is_said(
    inbox: Inbox, hang: Hang, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "HANGS_SECONDS", 1.0)
    monkeypatch.setattr(adapter, "CONNECT_SECONDS", 1.0)
    (tmp_path / "other").mkdir()
    other = Inbox(tmp_path / "other")
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*"))
        neighbour = running.start(other.trigger(pattern="*"))
        inbox.put("a.csv")
        other.put("a.csv")
        await until(lambda: watcher.ids and neighbour.ids, "both files")
        hang.answers.clear()
        await until(lambda: hang.hanging, "a hanging scan")
        inbox.put("b.csv")
        other.put("b.csv")
        await until(lambda: len(neighbour.ids) == 2 and other.names == [], "the neighbour's file")
        await until(lambda: "has not come on" in caplog.text, "a word on it")
        assert str(inbox.path) in caplog.text
        # Nobody joins a call that hangs.
        await asyncio.sleep(3)
        assert hang.hanging == 1
        assert len(watcher.ids) == 1
        hang.answers.set()
        await until(lambda: len(watcher.ids) == 2 and inbox.names == [], "the file after all", 2 * LONG_SECONDS)
    assert watcher.restarts == 0


async def test_closing_waits_for_no_hanging_mount(inbox: Inbox, hang: Hang, consumers: list[RecordedConsumer]) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*"))
        await until(lambda: consumers and consumers[0].scans, "a scan")
        hang.answers.clear()
        await until(lambda: hang.hanging, "a hanging scan")
        await asyncio.wait_for(running.cancel(watcher), LONG_SECONDS)
        assert hang.hanging == 1


async def test_a_slow_scan_is_no_trouble(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Longer than a receive waits, and than what counts as hanging: but it comes on.
    monkeypatch.setattr(adapter, "WAIT_SECONDS", 0.2)
    monkeypatch.setattr(adapter, "HANGS_SECONDS", 0.5)
    for n in range(20):
        inbox.put(f"{n}.csv")
    original = os.scandir

    class Slowly:
        def __init__(self, path: str) -> None:
            self.entries = original(path)

        def __enter__(self) -> Iterator[os.DirEntry[str]]:
            for entry in self.entries:
                time.sleep(0.05)
                yield entry

        def __exit__(self, *error: object) -> None:
            self.entries.close()

    monkeypatch.setattr(os, "scandir", Slowly)
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*"))
        await until(lambda: len(watcher.ids) == 20 and inbox.names == [], "all files")
    assert "has not come on" not in caplog.text


async def test_a_full_archive_is_said_and_loses_nothing(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    original = os.rename
    full = True

    def rename(source: Any, target: Any) -> None:
        if full and str(target).startswith(str(inbox.archive)):
            raise OSError(28, "No space left on device", str(target))
        original(source, target)

    monkeypatch.setattr(os, "rename", rename)
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*", archive_directory=inbox.archive))
        inbox.put("a.csv")
        await until(lambda: "no room left" in caplog.text, "a clear line")
        assert inbox.names == ["a.csv"]
        full = False
        await until(lambda: inbox.names == [], "the file archived", 2 * LONG_SECONDS)
    assert len(watcher.ids) == 1
    assert Path(watcher.bodies[0]["archived_path"]).read_text() == "content"


async def test_one_thread_takes_over_what_still_runs() -> None:
    threads = OneThread("test-thread")
    answer = threading.Event()
    calls = []

    def slow() -> int:
        calls.append("slow")
        answer.wait()
        return len(calls)

    for _ in range(3):
        with pytest.raises(StillRunning):
            await threads.call("slow", slow, 0.05)
    with pytest.raises(StillRunning):
        await threads.call("another", lambda: calls.append("another"), 0.05)
    assert calls == ["slow"]
    answer.set()
    assert await threads.call("slow", slow, LONG_SECONDS) == 1
    await threads.call("another", lambda: calls.append("another"), LONG_SECONDS)
    assert calls == ["slow", "another"]


async def test_a_thread_hands_on_what_is_raised() -> None:
    def fail() -> None:
        raise FileNotFoundError("it")

    with pytest.raises(FileNotFoundError, match="it"):
        await in_thread(fail, "test-thread")
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(in_thread(lambda: time.sleep(0.3), "test-thread"), 0.05)


@pytest.mark.slow
async def test_a_hundred_thousand_files(tmp_path: Path) -> None:
    count = 100_000
    for n in range(count):
        os.close(os.open(tmp_path / f"{n:06}", os.O_CREAT | os.O_WRONLY))
    os.utime(tmp_path / "050000", (1, 1))
    consumer = DirectoryConsumer(str(tmp_path), settle_seconds=0)
    await consumer.connect()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.005)

    task = asyncio.create_task(others())
    found: list[Any] = []
    batch = consumer.limits.receive_batch
    while not found:
        found = list(await consumer.receive(batch))
    assert turns >= 10, "a scan kept the event loop"
    task.cancel()
    assert len(found) <= batch
    assert found[0].handle.name == "050000"
    names = {delivery.handle.name for delivery in found}
    while len(names) < count:
        more = await consumer.receive(batch)
        assert len(more) <= batch
        names.update(delivery.handle.name for delivery in more)
    assert consumer.scans < 10
    await consumer.close()

"""Watchers on a directory, on Airflow's real manager."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.brokers.directory import adapter
from airflow_provider_sharedstream.messages import Message
from airflow_provider_sharedstream.messages.files import archived_file
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger
from tests.airflow_loop import triggerer, until
from tests.directory.conftest import QUICK, Inbox, RecordedConsumer

FUNCTIONS = "tests.directory.functions"


async def test_twenty_watchers_are_one_scan(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    async with triggerer() as running:
        started = time.monotonic()
        watchers = [running.start(inbox.trigger(filename=f"{n}.flag", poke_interval=0.5)) for n in range(20)]
        await until(lambda: consumers and consumers[0].scans >= 6, "six scans")
        assert len(consumers) == 1
        assert consumers[0].scans <= 1 + (time.monotonic() - started) / 0.5
        assert sum("sharedstream-directory" in thread.name for thread in threading.enumerate()) <= 1
        for n in range(20):
            inbox.put(f"{n}.flag")
        await until(lambda: all(len(watcher.ids) == 1 for watcher in watchers), "each watcher's file")
        assert [watcher.bodies[0]["name"] for watcher in watchers] == [f"{n}.flag" for n in range(20)]
        await until(lambda: inbox.names == [], "an empty directory")


async def test_a_file_is_deleted_only_when_every_matching_watcher_has_stored(inbox: Inbox) -> None:
    async with triggerer() as running:
        quick = running.start(inbox.trigger(pattern="*.csv"))
        slow = running.start(inbox.trigger(filename="a.csv", apply_function="tests.filters.three_seconds"))
        inbox.put("a.csv")
        inbox.put("b.csv")
        await until(lambda: len(quick.ids) == 2, "both files at the quick watcher")
        assert not slow.ids
        assert "a.csv" in inbox.names
        running.storing.clear()
        await asyncio.sleep(4)
        assert "a.csv" in inbox.names, "deleted before its event was stored"
        running.storing.set()
        await until(lambda: inbox.names == [], "an empty directory")
        assert len(slow.ids) == 1
        assert len(quick.ids) == 2


async def test_what_a_message_says(inbox: Inbox) -> None:
    path = inbox.put("a.csv", "1234")
    modified = path.stat().st_mtime
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(filename="a.csv", archive_directory=inbox.archive))
        await until(lambda: watcher.ids, "the file")
        message = Message.from_dict(watcher.messages[0])
        archived = await asyncio.to_thread(archived_file, message)
    assert archived.read_text() == "1234"
    assert message.body == {
        "path": str(path),
        "name": "a.csv",
        "size": 4,
        "modified_at": message.body["modified_at"],
        "archived_path": str(archived),
    }
    assert message.published_at is not None
    assert abs(message.published_at.timestamp() - modified) < 0.01
    assert watcher.events[0].payload["source"] == "directory"
    assert watcher.events[0].payload["stream"] == str(inbox.path)


async def test_the_archive_overwrites_nothing(inbox: Inbox) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(filename="a.csv", archive_directory=inbox.archive))
        for n in range(5):
            inbox.put("a.csv", f"version {n}")
            await until(lambda n=n: len(watcher.ids) == n + 1 and inbox.names == [], "the file archived")
    archived = [Path(body["archived_path"]).read_text() for body in watcher.bodies]
    assert archived == [f"version {n}" for n in range(5)]
    assert len(set(watcher.ids)) == 5
    assert len(os.listdir(inbox.archive)) == 5


async def test_an_archive_on_another_file_system(inbox: Inbox) -> None:
    archive = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="sharedstream-test-"))
    try:
        assert archive.stat().st_dev != inbox.path.stat().st_dev, "the test needs two file systems"
        async with triggerer() as running:
            watcher = running.start(inbox.trigger(pattern="*.bin", archive_directory=archive))
            contents = {f"{n}.bin": os.urandom(300_000) for n in range(20)}
            for name, content in contents.items():
                inbox.put(name, content)
            await until(lambda: len(watcher.ids) == 20 and inbox.names == [], "all archived")
        assert {body["name"]: Path(body["archived_path"]).read_bytes() for body in watcher.bodies} == contents
        assert len(os.listdir(archive)) == 20
    finally:
        shutil.rmtree(archive)


async def test_nobodys_file_stays_and_is_not_offered_again(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    inbox.put("nobodys.txt")
    async with triggerer() as running:
        running.start(inbox.trigger(pattern="*.csv"))
        await until(lambda: consumers and consumers[0].offered, "the file offered")
        offered = consumers[0].offered
        scans = consumers[0].scans
        await until(lambda: consumers[0].scans > scans + 10, "ten more scans")
        assert len(offered) == 1
        # It changes: another message.
        inbox.put("nobodys.txt", "changed")
        await until(lambda: len(offered) == 2, "the changed file offered")
        scans = consumers[0].scans
        await until(lambda: consumers[0].scans > scans + 10, "ten more scans")
        assert len(set(offered)) == len(offered) == 2
        assert inbox.names == ["nobodys.txt"]
        # Somebody joins who wants it.
        newcomer = running.start(inbox.trigger(pattern="*.txt"))
        await until(lambda: newcomer.ids == [offered[1]], "the file at the newcomer")
        await until(lambda: inbox.names == [], "an empty directory")


async def test_unmatched_files_may_be_deleted(inbox: Inbox) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*.csv", on_unmatched="accept"))
        inbox.put("a.csv")
        inbox.put("a.txt")
        await until(lambda: inbox.names == [], "an empty directory")
        assert [body["name"] for body in watcher.bodies] == ["a.csv"]


async def test_a_file_that_is_still_written_is_waited_for(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(filename="a.csv", settle_seconds=0.8, archive_directory=inbox.archive))
        with open(inbox.path / "a.csv", "w") as opened:
            for line in range(10):
                opened.write(f"line {line}\n")
                opened.flush()
                os.utime(inbox.path / "a.csv", (1, 1))
                await asyncio.sleep(0.3)
                assert not watcher.ids, "a half-written file was taken"
        assert consumers[0].scans > 5
        await until(lambda: watcher.ids, "the complete file")
        assert watcher.bodies[0]["size"] == 70
        await until(lambda: inbox.names == [], "an empty directory")
    assert len(watcher.ids) == 1


async def test_a_rejected_file_is_moved_with_its_reason(inbox: Inbox) -> None:
    async with triggerer() as running:
        trigger = inbox.trigger(
            pattern="*.csv", apply_function=f"{FUNCTIONS}.refuse_bad", rejected_directory=inbox.rejected
        )
        watcher = running.start(trigger)
        inbox.put("bad.csv", "rows")
        inbox.put("good.csv")
        await until(lambda: inbox.names == [], "an empty directory")
        assert [body["name"] for body in watcher.bodies] == ["good.csv"]
    (reason_path,) = inbox.rejected.glob("*.reason.json")
    rejected = reason_path.with_name(reason_path.name.removesuffix(".reason.json"))
    assert rejected.read_text() == "rows"
    reason = json.loads(reason_path.read_text())
    assert "bad: größe stimmt nicht" in reason["reason"]
    assert reason["path"] == str(inbox.path / "bad.csv")
    assert reason["name"] == "bad.csv"
    assert reason["watcher"] == f"trigger {watcher.number}"
    assert reason["delivery_id"].startswith("bad.csv@")
    assert len(os.listdir(inbox.rejected)) == 2


async def test_without_a_place_a_rejected_file_stays_and_comes_again(
    inbox: Inbox, consumers: list[RecordedConsumer]
) -> None:
    async with triggerer() as running:
        running.start(inbox.trigger(pattern="*", apply_function=f"{FUNCTIONS}.refuse_bad", release_delay_seconds=0.2))
        inbox.put("bad.csv")
        await until(lambda: consumers, "the adapter")
        offered = consumers[0].offered
        await until(lambda: len(offered) >= 4, "the file offered again and again")
        assert len(set(offered)) == 1
        assert inbox.names == ["bad.csv"]


async def test_a_file_that_fails_for_ever_ends_with_the_rejected(inbox: Inbox) -> None:
    async with triggerer() as running:
        running.start(
            inbox.trigger(
                pattern="*",
                apply_function=f"{FUNCTIONS}.fail",
                on_error="release",
                max_deliveries=3,
                release_delay_seconds=0.1,
                rejected_directory=inbox.rejected,
            )
        )
        inbox.put("a.csv")
        await until(lambda: inbox.names == [], "an empty directory")
    (reason_path,) = inbox.rejected.glob("*.reason.json")
    assert json.loads(reason_path.read_text())["delivery_count"] == 3


async def test_replaced_while_with_the_watchers_it_is_another_message(
    inbox: Inbox, consumers: list[RecordedConsumer]
) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(filename="a.csv", archive_directory=inbox.archive))
        running.storing.clear()
        inbox.put("a.csv", "first")
        await until(lambda: consumers and len(consumers[0].offered) == 1, "the first version offered")
        inbox.put("a.csv", "second")
        await until(lambda: len(consumers[0].offered) == 2, "the second version offered")
        running.storing.set()
        await until(lambda: len(watcher.ids) == 2 and inbox.names == [], "both versions")
    assert len(set(watcher.ids)) == 2
    assert [body["size"] for body in watcher.bodies] == [5, 6]
    # What was overwritten before it could be archived is gone, and nothing else took its name.
    first, second = (Path(body["archived_path"]) for body in watcher.bodies)
    assert not first.exists()
    assert second.read_text() == "second"
    with pytest.raises(FileNotFoundError, match="not there after"):
        archived_file(Message.from_dict(watcher.messages[0]), timeout_seconds=0.2)


async def test_a_file_that_others_took_is_no_trouble(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*.csv"))
        running.storing.clear()
        inbox.put("a.csv")
        await until(lambda: consumers and consumers[0].offered, "the file offered")
        (inbox.path / "a.csv").unlink()
        running.storing.set()
        await until(lambda: watcher.ids, "the file")
        inbox.put("b.csv")
        await until(lambda: len(watcher.ids) == 2 and inbox.names == [], "the next one")
    assert watcher.restarts == 0


async def test_files_that_appear_during_scans_come_once_each(inbox: Inbox) -> None:
    count = 2000
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*.csv", settle_seconds=0.2))

        def produce() -> None:
            for n in range(count):
                inbox.put(f"{n}.csv", str(n))
                if n % 100 == 0:
                    time.sleep(0.1)

        await asyncio.to_thread(produce)
        await until(lambda: len(set(watcher.ids)) == count and inbox.names == [], "all files")
    assert [name for name, times in Counter(body["name"] for body in watcher.bodies).items() if times > 1] == []


async def test_recursive_with_the_archive_inside(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    archive = inbox.path / "done"
    for folder in (archive, inbox.path / "2026" / "01"):
        folder.mkdir(parents=True)
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="2026/*.csv", recursive=True, archive_directory=archive))
        inbox.put("2026/01/a.csv", "deep")
        await until(lambda: watcher.ids, "the file")
        await until(lambda: not list((inbox.path / "2026").rglob("*.csv")), "the file taken away")
        scans = consumers[0].scans
        await until(lambda: consumers[0].scans > scans + 5, "five more scans")
    assert len(watcher.ids) == 1
    assert watcher.bodies[0]["name"] == "2026/01/a.csv"
    (archived,) = (archive / "2026" / "01").iterdir()
    assert str(archived) == watcher.bodies[0]["archived_path"]
    assert archived.read_text() == "deep"


CONTENTS: dict[str, tuple[bytes, Any, dict[str, Any]]] = {
    "object.json": (b'{"region": "eu", "n": 1}', {"region": "eu", "n": 1}, {}),
    "text.csv": ("a;b\n1;ü\n".encode(), "a;b\n1;ü\n", {}),
    "empty.flag": (b"", "", {}),
    "bytes.bin": (b"\xff\xfe\x00", "//4A", {"body_encoding": "base64"}),
    "large.csv": (b"x" * 5000, None, {"body_omitted": {"bytes": 5000}}),
}


async def test_contents_are_carried_up_to_a_size(inbox: Inbox) -> None:
    for name, (content, _, _) in CONTENTS.items():
        inbox.put(name, content)
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*", content_up_to_bytes=1000))
        matching = running.start(inbox.trigger(pattern="*.json", content_up_to_bytes=1000, match="body.region == 'eu'"))
        await until(lambda: inbox.names == [], "an empty directory")
    got = {message["attributes"]["name"]: message for message in watcher.messages}
    assert set(got) == set(CONTENTS)
    for name, (content, body, attributes) in CONTENTS.items():
        assert got[name]["body"] == body, name
        assert got[name]["attributes"]["size"] == len(content)
        assert got[name]["attributes"].items() >= attributes.items()
    assert matching.ids == [got["object.json"]["id"]]


async def test_a_file_that_a_file_server_has_a_lease_on_holds_up_no_other(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(adapter, "UNREADABLE_SECONDS", 1.0)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # by which the lease is asked back
    try:
        with inbox.put("leased.json", '{"n": 1}').open("r+") as leased:
            fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            inbox.put("free.json", '{"n": 2}')
            async with triggerer() as running:
                watcher = running.start(inbox.trigger(pattern="*", content_up_to_bytes=100))
                await until(lambda: inbox.names == ["leased.json"], "the other file")
                fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                await until(lambda: inbox.names == [], "an empty directory")
                assert watcher.bodies == [{"n": 2}, {"n": 1}]
                assert watcher.restarts == 0
    finally:
        signal.signal(signal.SIGIO, before)
    assert caplog.text.count("A file can't be read, and stays where it is") == 1
    assert "tries again" not in caplog.text


async def test_contents_that_cannot_be_stored_are_rejected_with_a_reason(inbox: Inbox) -> None:
    async with triggerer() as running:
        trigger = inbox.trigger(pattern="*", content_up_to_bytes=100_000, rejected_directory=inbox.rejected)
        watcher = running.start(trigger)
        inbox.put("nan.json", '{"n": NaN}')
        inbox.put("deep.json", "[" * 200 + "]" * 200)
        inbox.put("large.json", '{"n": 99999999999999999999}')
        inbox.put("good.json", '{"n": 1}')
        await until(lambda: inbox.names == [], "an empty directory")
    assert watcher.bodies == [{"n": 1}]
    reasons = [json.loads(path.read_text()) for path in inbox.rejected.glob("*.reason.json")]
    assert sorted(reason["name"] for reason in reasons) == ["deep.json", "large.json", "nan.json"]
    assert all(reason["reason"] for reason in reasons)


async def test_much_content_comes_in_portions(inbox: Inbox, consumers: list[RecordedConsumer]) -> None:
    for n in range(40):
        inbox.put(f"{n:02}.txt", f"{n:02}" + "x" * 1_000_000)
    consumer = RecordedConsumer(
        directory=str(inbox.path), settle_seconds=0, poke_interval=0.1, content_up_to_bytes=1_048_576
    )
    await consumer.connect()
    portions: list[int] = []
    while sum(portions) < 40:
        portions.append(len(await consumer.receive(100)))
    assert max(portions) <= 9
    assert len(set(consumer.offered)) == 40
    await consumer.close()


async def test_names_that_are_no_text(inbox: Inbox) -> None:
    for name in (b"caf\xe9.csv", b"new\nline.csv", "größe €.csv".encode(), b"\xed\xa0\x80.csv"):
        with open(os.fsencode(inbox.path) + b"/" + name, "w") as opened:
            opened.write("content")
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*.csv", archive_directory=inbox.archive))
        await until(lambda: len(watcher.ids) == 4 and inbox.names == [], "all files archived")
    payloads = json.dumps([event.payload for event in watcher.events], ensure_ascii=False)
    payloads.encode()  # storable: no lone surrogates
    assert sorted(body["name"] for body in watcher.bodies) == sorted(
        ["caf\\udce9.csv", "new\nline.csv", "größe €.csv", "\\udced\\udca0\\udc80.csv"]
    )
    for body in watcher.bodies:
        assert Path(body["archived_path"]).read_text() == "content"


async def test_events_are_small(inbox: Inbox) -> None:
    for n in range(200):
        inbox.put(f"{n:03}.csv")
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*", archive_directory=inbox.archive))
        await until(lambda: len(watcher.ids) == 200, "all files")
    assert max(len(json.dumps(event.payload)) for event in watcher.events) <= 65_536 + 200
    assert max(len(event.payload["messages"]) for event in watcher.events) <= 100


class OwnFilter(DirectoryFileDeleteTrigger):
    """As Airflow's documentation shows it."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            if names := [message.body["name"] for message in batch]:
                yield TriggerEvent({"messages": [{"id": name} for name in names]})


async def test_a_users_own_filter_sees_the_files_of_its_pattern(inbox: Inbox) -> None:
    async with triggerer() as running:
        watcher = running.start(OwnFilter(inbox.path, pattern="*.csv", **QUICK))
        other = running.start(OwnFilter(inbox.path, filename="a.flag", **QUICK))
        for name in ("a.csv", "b.csv", "a.flag", "nobodys.txt"):
            inbox.put(name)
        await until(lambda: inbox.names == ["nobodys.txt"], "the files taken away")
    assert sorted(watcher.ids) == ["a.csv", "b.csv"]
    assert other.ids == ["a.flag"]


async def test_match_is_on_top_of_the_name(inbox: Inbox) -> None:
    async with triggerer() as running:
        watcher = running.start(inbox.trigger(pattern="*.csv", match="body.size > `3`"))
        for name, content in (("large.csv", "1234"), ("small.csv", "123"), ("large.txt", "1234")):
            inbox.put(name, content)
        await until(lambda: watcher.ids, "the file")
        await until(lambda: inbox.names == ["large.txt", "small.csv"], "the file taken away")
    assert [body["name"] for body in watcher.bodies] == ["large.csv"]


async def test_run_works_alone(inbox: Inbox) -> None:
    inbox.put("a.csv")
    inbox.put("b.csv")
    events = inbox.trigger(pattern="*.csv", batch_size=1).run()
    names = [(await events.__anext__()).payload["messages"][0]["body"]["name"] for _ in range(2)]
    assert sorted(names) == ["a.csv", "b.csv"]
    await events.aclose()  # type: ignore[attr-defined]

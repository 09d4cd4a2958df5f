"""The promises of the Kafka trigger, on a real broker under watchers on Airflow's real `SharedStreamManager`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.stream import metrics
from tests.airflow_loop import Triggerer, Watcher, triggerer, until
from tests.kafka.conftest import Kafka, Topic, records_of

FILTERS = "tests.kafka.filters"


def emptied(topic: Topic) -> Any:
    async def check() -> bool:
        return await topic.pending() == 0

    return check


async def send_nothing(topic: Topic) -> None:
    """Write a record that has neither key nor value."""
    async with AIOKafkaProducer(bootstrap_servers=topic.server.bootstrap) as producer:
        batch = producer.create_batch()
        batch.append(timestamp=None, key=None, value=None)
        await (await producer.send_batch(batch, topic.name, partition=0))


def numbers(watcher: Watcher) -> list[int]:
    return [body["n"] for body in watcher.bodies]


class HoldingTriggerer(Triggerer):
    """Stores no event that holds a message of partition 0 until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.held = True

    async def _store(self) -> None:
        while True:
            await asyncio.sleep(self._confirm_seconds)
            stored: list[int] = []
            for _ in range(len(self._outbound)):
                watcher, event, seq = self._outbound.popleft()
                if self.held and any(m["attributes"]["partition"] == 0 for m in event.payload["messages"]):
                    self._outbound.append((watcher, event, seq))
                    continue
                watcher.events.append(event)
                if seq is not None:
                    stored.append(seq)
            self.manager.confirm_persisted(stored)


async def test_twenty_watchers_are_one_member_and_each_sees_every_record_of_its_own(kafka: Kafka) -> None:
    topic = await kafka.topic(12)
    async with triggerer() as running:
        watchers = [running.start(topic.trigger(match={"body.watcher": n})) for n in range(20)]
        everything = running.start(topic.trigger())
        await topic.send_json([{"watcher": n % 20, "n": n} for n in range(2000)])
        await until(lambda: len(everything.ids) >= 2000 and all(len(w.ids) >= 100 for w in watchers), "all records")
        assert await topic.members() == 1
        await until(emptied(topic), "everything committed")
        assert sorted(numbers(everything)) == list(range(2000))
        for number, watcher in enumerate(watchers):
            assert sorted(numbers(watcher)) == list(range(number, 2000, 20))
            assert watcher.restarts == 0
    await until(lambda: _no_members(topic), "the member gone")


async def _no_members(topic: Topic) -> bool:
    return await topic.members() == 0


@pytest.mark.parametrize("trouble", ["fails", "is slow"])
async def test_one_partition_does_not_delay_the_commits_of_the_others(kafka: Kafka, trouble: str) -> None:
    topic = await kafka.topic(3)
    await asyncio.gather(*(topic.send_json([{"n": n} for n in range(500)], partition=p) for p in range(3)))
    running = HoldingTriggerer()
    try:
        more = {"apply_function": f"{FILTERS}.fail_in_partition_0", "on_error": "release", "max_deliveries": None}
        watcher = running.start(topic.trigger(batch_size=50, **(more if trouble == "fails" else {})))

        async def others_committed() -> bool:
            committed = await topic.committed()
            return committed.get(1) == committed.get(2) == 500

        await until(others_committed, "the commits of the others")
        assert (await topic.committed()).get(0, 0) == 0
        of_partition = Counter(message["attributes"]["partition"] for message in watcher.messages)
        assert of_partition == {1: 500, 2: 500}
        if trouble == "is slow":
            running.held = False
            await until(emptied(topic), "the slow one committed")
            assert len(set(watcher.ids)) == len(watcher.ids) == 1500
    finally:
        await running.stop()


async def test_a_rejected_record_is_copied_with_its_reason_and_only_then_committed(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    async with triggerer() as running:
        strict = running.start(topic.trigger(apply_function=f"{FILTERS}.reject_marked"))
        sibling = running.start(topic.trigger())
        await topic.send_json(
            [{"n": n, "reject": n % 10 == 3} for n in range(50)],
            key=b"k\xff",
            headers=[("trace", b"\x00\xff"), ("twice", b"a"), ("twice", b"b")],
        )
        await topic.send([None], key=b"gone")
        await send_nothing(topic)
        await until(emptied(topic), "everything committed")
        letters = await topic.dead_letters()
        assert [letter.value for letter in letters][:5] == [
            f'{{"n": {n}, "reject": true}}'.encode() for n in range(3, 50, 10)
        ]
        first = letters[0]
        assert first.key == b"k\xff"
        assert first.headers[:3] == (("trace", b"\x00\xff"), ("twice", b"a"), ("twice", b"b"))
        said = dict(first.headers)
        prefix = "x-sharedstream-"
        assert said[prefix + "reason"].decode().endswith("it says so itself: ünwanted")
        assert said[prefix + "topic"] == topic.name.encode()
        assert (said[prefix + "partition"], said[prefix + "offset"]) == (b"0", b"3")
        assert int(said[prefix + "timestamp"]) > 1_600_000_000_000
        assert b"trigger 1" in said[prefix + "watcher"]
        tombstone, empty = letters[5:]
        assert (tombstone.key, tombstone.value) == (b"gone", None)
        # aiokafka sends nothing that has neither key nor value, so the copy says that it had none.
        assert (empty.key, empty.value) == (b"", None)
        assert dict(empty.headers)[prefix + "without-key"] == b"true"
        assert len(strict.ids) == 45
        assert len(sibling.ids) == 52
        assert not strict.restarts


async def test_the_offset_does_not_pass_a_rejected_record_whose_copy_is_not_written(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    assert topic.dead_letter_topic is not None
    async with triggerer() as running:
        watcher = running.start(topic.trigger(apply_function=f"{FILTERS}.reject_marked", batch_size=10))
        await until(lambda: _one_member(topic), "a member")
        async with kafka.server.admin() as admin:
            await admin.delete_topic(topic.dead_letter_topic)
        await topic.send_json([{"n": n, "reject": n == 25} for n in range(100)])
        await until(lambda: len(watcher.ids) >= 99, "all others")
        committed: set[int] = set()
        for _ in range(20):
            committed.add((await topic.committed()).get(0, 0))
            await asyncio.sleep(0.1)
        assert 0 < max(committed) <= 25, "the offset has passed a record of which there is no copy"
        async with kafka.server.admin() as admin:
            await admin.create_topic(topic.dead_letter_topic)
        await until(emptied(topic), "everything committed", 120)
        assert [letter.value for letter in await topic.dead_letters()] == [b'{"n": 25, "reject": true}']
        assert len(set(watcher.ids)) == 99


async def test_a_letter_as_large_as_its_topic_takes_goes_without_the_note(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.topic(1, dead_letters=False, settings={"max.message.bytes": "2000000"})
    topic.dead_letter_topic = f"{topic.name}-rejected"
    async with kafka.server.admin() as admin:
        await admin.create_topic(topic.dead_letter_topic, settings={"max.message.bytes": "10100"})
    body = b'{"reject": true, "x": "' + b"x" * 10_000 + b'"}'
    async with triggerer() as running:
        running.start(topic.trigger(apply_function=f"{FILTERS}.reject_marked"))
        await topic.send([body])
        await until(emptied(topic), "it is committed")
    (letter,) = await topic.dead_letters()
    assert letter.value == body
    assert letter.headers == ()
    assert "too large for its note" in caplog.text


async def test_what_a_record_holds_is_in_the_message(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    async with triggerer() as running:
        watcher = running.start(topic.trigger())
        await topic.send(
            [b'{"a": 1}'], key=b"k1", headers=[("kind", b"order"), ("n", b"1"), ("n", b"2"), ("n", b"\xff")]
        )
        await topic.send([None, b"", b"\xff\x00", "grün".encode()], key=b"\xfe")
        await topic.send([b"[]"])
        await until(lambda: len(watcher.messages) == 6, "six messages")
        first, tombstone, empty, raw, text, keyless = watcher.messages
        assert first["id"] == f"{topic.name}:0:0"
        assert (first["body"], first["key"]) == ({"a": 1}, "k1")
        assert first["headers"] == {"kind": "order", "n": ["1", "2", {"base64": "/w=="}]}
        attributes = first["attributes"]
        assert (attributes["topic"], attributes["partition"], attributes["offset"]) == (topic.name, 0, 0)
        assert attributes["timestamp_type"] == "create_time"
        assert first["published_at"].endswith("+00:00")
        assert first["delivery_count"] == 1
        assert (tombstone["body"], tombstone["key"]) == (None, "/g==")
        assert tombstone["attributes"]["key_encoding"] == "base64"
        assert empty["body"] == ""
        assert (raw["body"], raw["attributes"]["body_encoding"]) == ("/wA=", "base64")
        assert text["body"] == "grün"
        assert keyless["key"] is None


async def test_an_id_is_the_same_when_a_record_comes_again(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(3)])
    seen: list[list[str]] = []
    for _ in range(2):
        consumer = topic.consumer()
        await consumer.connect()
        found: list[str] = []
        while len(found) < 3:
            found += [delivery.id for delivery in await consumer.receive(10)]
        await consumer.close()
        seen.append(found)
    assert seen[0] == seen[1] == [f"{topic.name}:0:{n}" for n in range(3)]


async def test_a_full_budget_keeps_the_membership(kafka: Kafka) -> None:
    topic = await kafka.topic(3)
    await topic.send_json([{"n": n} for n in range(300)])
    async with triggerer() as running:
        running.storing.clear()
        watcher = running.start(topic.trigger(max_in_flight=20, batch_size=10))
        await until(lambda: _one_member(topic), "a member")
        async with kafka.server.admin() as admin:
            (before,) = await admin.members(topic.group)
        # Twice the session: nothing is polled meanwhile.
        await asyncio.sleep(12)
        async with kafka.server.admin() as admin:
            assert await admin.members(topic.group) == [before]
        assert not watcher.events
        running.storing.set()
        await until(emptied(topic), "everything committed")
        assert sorted(numbers(watcher)) == list(range(300)), "membership was lost: something came twice"


async def _one_member(topic: Topic) -> bool:
    return await topic.members() == 1


async def test_the_lag_of_each_partition_is_reported(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await kafka.topic(2)
    found: dict[str, float] = {}

    def gauge(name: str, value: float, *, tags: dict[str, str]) -> None:
        if name == metrics.LAG.name:
            found[tags["lane"]] = value

    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.EVERY_SECONDS", 0.2)
    monkeypatch.setattr(f"{metrics.__name__}.stats.gauge", gauge)
    await topic.send_json([{"n": n} for n in range(100)], partition=1)
    async with triggerer() as running:
        running.storing.clear()
        running.start(topic.trigger(max_in_flight=20, batch_size=10))
        await until(lambda: found == {f"{topic.name}-0": 0, f"{topic.name}-1": 80}, "the lag of a full budget")
        running.storing.set()
        await until(lambda: found == {f"{topic.name}-0": 0, f"{topic.name}-1": 0}, "no lag")


async def test_a_users_own_filter_gets_messages(kafka: Kafka) -> None:
    topic = await kafka.topic(1)

    class Own(type(topic.trigger())):  # type: ignore[misc]
        async def filter_shared_stream(self, shared_stream: Any) -> Any:
            async for batch in shared_stream:
                bodies = []
                for message in batch:
                    if message.body["n"] % 2:
                        batch.reject(message, "odd")
                    else:
                        bodies.append(message.body["n"])
                if bodies:
                    yield TriggerEvent({"messages": [{"body": body, "id": str(body)} for body in bodies]})

    async with triggerer() as running:
        watcher = running.start(Own(**topic.arguments()))
        await topic.send_json([{"n": n} for n in range(20)])
        await until(emptied(topic), "everything committed")
        assert watcher.bodies == list(range(0, 20, 2))
        assert len(await topic.dead_letters()) == 10


def values(found: Iterable[Any]) -> list[bytes | None]:
    return [record.value for record in found]


async def test_a_record_of_another_client_is_read_as_it_is(kafka: Kafka) -> None:
    """Compressed, by Java's producer."""
    topic = await kafka.topic(4)
    await asyncio.to_thread(kafka.server.fill, topic.name, 5000, ["x" * 50])
    async with triggerer() as running:
        watcher = running.start(topic.trigger(batch_size=500))
        await until(emptied(topic), "everything committed")
        assert len(watcher.ids) == len(set(watcher.ids)) == 5000
    written = Counter(values(await records_of(kafka.server, topic.name)))
    assert Counter(body.encode() for body in watcher.bodies) == written

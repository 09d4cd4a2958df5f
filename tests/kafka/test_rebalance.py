"""Members that come and go, while records flow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from airflow_provider_sharedstream.brokers.kafka.errors import Rebalancing
from airflow_provider_sharedstream.brokers.kafka.membership import Phase
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from tests.airflow_loop import repeated, triggerer, until
from tests.kafka.conftest import Kafka, Topic, connect, other_member
from tests.kafka.test_stream import emptied, numbers

FILTERS = "tests.kafka.filters"


class Revocations:
    """What the machine is told of lost lanes."""

    joins = 0
    introductions: frozenset[Any] = frozenset()
    max_in_flight = 1000
    max_in_flight_bytes = 1 << 26

    def __init__(self, on_revoked: Callable[[], Any] | None = None) -> None:
        self.lost: list[TopicPartition] = []
        self.asked_to_settle = 0
        self._on_revoked = on_revoked

    async def settle_decided(self, lanes: frozenset[Any], within_seconds: float) -> None:
        assert lanes
        self.asked_to_settle += 1
        if self._on_revoked is not None:
            await self._on_revoked()

    async def lanes_revoked(self, lanes: frozenset[Any], settle_within_seconds: float) -> None:
        assert settle_within_seconds == 0, "they are gone already"
        self.lost += lanes


async def connected(topic: Topic, owner: Revocations) -> KafkaConsumer:
    consumer = topic.consumer()
    consumer.lane_owner = owner
    await join(consumer)
    return consumer


async def join(consumer: KafkaConsumer) -> None:
    """Do what the first receive does, without receiving."""
    await consumer.connect()
    assert consumer._session is not None
    await consumer._session.join()


def lanes_of(consumer: KafkaConsumer) -> frozenset[Any]:
    assert consumer._session is not None
    return consumer._session.membership.lanes


async def poll_until(consumer: KafkaConsumer, condition: Callable[[], bool]) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        found += await consumer.receive(1000)
    return found


async def test_what_is_kept_in_a_rebalance_goes_on_and_what_is_lost_is_said_once(kafka: Kafka) -> None:
    topic = await kafka.topic(4)
    await asyncio.gather(*(topic.send_json([{"n": n} for n in range(10)], partition=p) for p in range(4)))
    owner = Revocations()
    first = await connected(topic, owner)
    got: list[Any] = []
    while len(got) < 40:
        got += await first.receive(1000)
    joining = asyncio.create_task(connected(topic, Revocations()))
    again = await poll_until(first, lambda: len(lanes_of(first)) == 2)
    second = await joining
    assert owner.asked_to_settle == 1
    assert frozenset(owner.lost) == frozenset(TopicPartition(topic.name, p) for p in range(4)) - lanes_of(first)
    assert len(owner.lost) == 2
    # Nothing is committed, and still nothing of what was kept comes again.
    more = await first.receive(1000)
    assert not again
    assert not more
    theirs: list[Any] = []
    while len(theirs) < 20:
        theirs += await second.receive(1000)
    assert {delivery.lane for delivery in theirs} == lanes_of(second) == frozenset(owner.lost)
    # What is ours may be accepted, what isn't mayn't.
    failures = await first.settle(Disposition.ACCEPT, got)
    assert {delivery.lane for delivery in failures} == set(owner.lost)
    assert all(isinstance(error, LeaseLost) for error in failures.values())
    assert {p: at for p, at in (await topic.committed()).items() if at} == {
        own.partition: 10 for own in lanes_of(first)
    }
    await first.close()
    await poll_until(second, lambda: len(lanes_of(second)) == 4)
    await second.close()


async def test_what_is_decided_is_committed_before_a_partition_goes(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    await asyncio.gather(*(topic.send_json([{"n": n} for n in range(10)], partition=p) for p in range(2)))
    got: list[Any] = []

    async def settle() -> None:
        assert not await first.settle(Disposition.ACCEPT, got)

    first = await connected(topic, Revocations(settle))
    while len(got) < 20:
        got += await first.receive(1000)
    joining = asyncio.create_task(connected(topic, Revocations()))
    await poll_until(first, lambda: len(lanes_of(first)) == 1)
    second = await joining
    assert await topic.committed() == {0: 10, 1: 10}
    assert not await second.receive(1000)
    await first.close()
    await second.close()


async def test_a_held_lane_stays_held_and_returns_through_a_rebalance(kafka: Kafka) -> None:
    topic = await kafka.topic(2)
    await asyncio.gather(*(topic.send_json([{"n": n} for n in range(10)], partition=p) for p in range(2)))
    first = await connected(topic, Revocations())
    got: list[Any] = []
    while len(got) < 20:
        got += await first.receive(1000)
    held = [next(d for d in got if d.lane.partition == p and d.offset == 4) for p in range(2)]
    for delivery in held:
        delivery.release_delay_seconds = 8.0
    await first.settle(Disposition.RELEASE, held)
    held_at = time.monotonic()
    joining = asyncio.create_task(connected(topic, Revocations()))
    early = await poll_until(first, lambda: len(lanes_of(first)) == 1)
    second = await joining
    assert not early
    assert time.monotonic() - held_at < 8.0, "the rebalance took so long that this shows nothing"
    again: list[Any] = []
    while not again:
        again += await first.receive(1000)
    assert time.monotonic() - held_at >= 8.0
    assert [delivery.offset for delivery in again] == list(range(4, 10))
    assert {delivery.lane for delivery in again} == lanes_of(first)
    await first.close()
    await second.close()


async def test_a_member_that_was_thrown_out_commits_nothing(kafka: Kafka) -> None:
    """Its event loop is blocked for longer than the session."""
    connect(kafka.server, "kafka_short", {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"})
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(10)])
    owner = Revocations()
    consumer = topic.consumer(kafka_config_id="kafka_short")
    consumer.lane_owner = owner
    await consumer.connect()
    got: list[Any] = []
    while len(got) < 10:
        got += await consumer.receive(1000)
    assert consumer._session is not None
    generation = consumer._session.membership.generation
    time.sleep(4)
    with pytest.raises((CommitFailedError, Rebalancing)) as caught:
        await consumer.settle(Disposition.ACCEPT, got)
    assert consumer.is_transient(caught.value)
    assert await topic.committed() == {0: 0}
    again = await poll_until(consumer, lambda: consumer._session.membership.generation > generation)  # type: ignore[union-attr]
    while len(again) < 10:
        again += await consumer.receive(1000)
    assert owner.lost == [TopicPartition(topic.name, 0)]
    assert owner.asked_to_settle == 0
    assert [delivery.id for delivery in again] == [delivery.id for delivery in got]
    assert not await consumer.settle(Disposition.ACCEPT, again)
    assert await topic.committed() == {0: 10}
    await consumer.close()
    with pytest.raises(LeaseLost):
        raise next(iter((await consumer.settle(Disposition.ACCEPT, again)).values()))


async def test_an_offset_goes_back_only_where_reading_did(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(10)])
    consumer = await connected(topic, Revocations())
    got: list[Any] = []
    while len(got) < 10:
        got += await consumer.receive(1000)
    assert not await consumer.settle(Disposition.ACCEPT, got)
    # A call that was slow to fail, and is made again.
    assert not await consumer.settle(Disposition.ACCEPT, got[:5])
    assert await topic.committed() == {0: 10}
    # What a partition does that was truncated.
    assert consumer._session is not None
    consumer._session.membership.seek(got[0].lane, 0)
    again: list[Any] = []
    while len(again) < 10:
        again += await consumer.receive(1000)
    assert not await consumer.settle(Disposition.ACCEPT, again[:5])
    assert await topic.committed() == {0: 5}
    await consumer.close()


async def test_a_second_member_comes_and_goes_while_records_flow(kafka: Kafka) -> None:
    topic = await kafka.topic(6)
    sent = 0
    flowing = True

    async def send() -> None:
        nonlocal sent
        while flowing:
            await topic.send_json([{"n": n} for n in range(sent, sent + 20)])
            sent += 20
            await asyncio.sleep(0.05)

    theirs: list[int] = []
    async with triggerer(confirm_seconds=0.2) as running:
        watcher = running.start(topic.trigger(batch_size=10))
        flow = asyncio.create_task(send())
        await until(lambda: len(watcher.ids) > 100, "a flow")
        for _ in range(4):
            before = len(watcher.ids)
            theirs += await other_member(topic)
            await until(lambda before=before: len(watcher.ids) > before + 200, "the flow goes on")
        flowing = False
        await flow
        await until(emptied(topic), "everything committed")
        both = set(numbers(watcher)) | set(theirs)
        assert both == set(range(sent)), f"lost {sorted(set(range(sent)) - both)[:10]}"
        # What was in flight of a partition that went may come twice: to them, or back to us.
        assert len(repeated(watcher.ids)) <= 8 * 1000
        assert not watcher.restarts


async def test_a_stream_that_waits_for_its_turn_is_no_member(kafka: Kafka) -> None:
    """What is connected, and not received from, takes no partition from the stream that has its turn."""
    topic = await kafka.topic(2)
    await asyncio.gather(*(topic.send_json([{"n": n} for n in range(10)], partition=p) for p in range(2)))
    first, second = topic.consumer(), topic.consumer()
    await first.connect()
    await second.connect()
    got: list[Any] = []
    while len(got) < 20:
        got += await first.receive(1000)
    assert await topic.members() == 1
    await first.close()
    again: list[Any] = []
    while len(again) < 20:
        again += await second.receive(1000)
    assert {delivery.id for delivery in again} == {delivery.id for delivery in got}
    await second.close()


async def test_a_static_member_is_unique_and_leaves(kafka: Kafka) -> None:
    connect(kafka.server, "kafka_static", {"group.instance.id": "me", "session.timeout.ms": "90000"})
    topic = await kafka.topic(2)
    first, second = topic.consumer(kafka_config_id="kafka_static"), topic.consumer(kafka_config_id="kafka_static")
    await join(first)
    joining = asyncio.create_task(join(second))
    await poll_until(first, lambda: len(lanes_of(first)) == 1)
    await joining
    assert lanes_of(first) | lanes_of(second) == {TopicPartition(topic.name, p) for p in range(2)}
    await second.close()
    # Long before its session ends.
    await poll_until(first, lambda: len(lanes_of(first)) == 2)
    await first.close()


async def test_a_group_that_never_settles_is_said(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.SILENCE_SECONDS", 0.0)
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.EVERY_SECONDS", 0.2)
    connect(kafka.server, "kafka_quick", {"session.timeout.ms": "1500", "max.poll.interval.ms": "1500"})
    topic = await kafka.topic(1)
    consumer = topic.consumer(kafka_config_id="kafka_quick")
    await join(consumer)
    assert consumer._session is not None
    consumer._session.membership._enter(Phase.JOINING)
    with pytest.raises(ConnectionError, match="a rebalance of the group does not end"):
        await poll_until(consumer, lambda: False)
    await consumer.close()

"""In which history a partition is read: it goes on through whatever happens to us, and no further than an operator."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient

from airflow_provider_sharedstream.brokers.kafka.histories import history_of, metadata, new_history
from airflow_provider_sharedstream.stream.disposition import Disposition
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import Kafka, Topic, connect, lanes, other_member
from tests.kafka.test_rebalance import Revocations, connected, lanes_of, poll_until
from tests.kafka.test_stream import emptied


async def commit(topic: Topic, offset: int, text: str = "") -> None:
    """Set the group's offset, which has no member, as an admin client does."""
    async with AIOKafkaConsumer(
        bootstrap_servers=topic.server.bootstrap, group_id=topic.group, enable_auto_commit=False
    ) as consumer:
        consumer.assign(lanes(topic))
        await consumer.commit(dict.fromkeys(lanes(topic), (offset, text)))


async def committed(topic: Topic) -> dict[int, Any]:
    """Offset and metadata, by partition."""
    client = AIOKafkaAdminClient(bootstrap_servers=topic.server.bootstrap)
    await client.start()
    try:
        found = await client.list_consumer_group_offsets(topic.group)
    finally:
        await client.close()
    return {lane.partition: at for lane, at in found.items()}


async def read(topic: Topic, most: int, *, settled: int) -> tuple[list[int], set[str]]:
    """Join, read ``most`` records, commit the first few, and leave; return the offsets, and their histories."""
    consumer = await connected(topic, Revocations())
    got: list[Any] = []
    deadline = time.monotonic() + 60
    while len(got) < most:
        assert time.monotonic() < deadline
        got += await consumer.receive(most - len(got))
    before = (await committed(topic))[0]
    assert {one.history for one in got} == {history_of(before)}, "it has to be durable before a record is handed out"
    if settled:
        assert not await consumer.settle(Disposition.ACCEPT, got[:settled])
    await consumer.close()
    return [one.offset for one in got], {one.history for one in got}


async def filled(kafka: Kafka) -> Topic:
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(10)])
    return topic


async def test_it_goes_on_from_commit_to_commit(kafka: Kafka) -> None:
    topic = await filled(kafka)
    first = await read(topic, 4, settled=0)
    assert first == ([0, 1, 2, 3], first[1])
    assert await read(topic, 4, settled=3) == first, "nothing was committed but where it begins"
    assert await read(topic, 7, settled=7) == ([3, 4, 5, 6, 7, 8, 9], first[1])
    assert (await committed(topic))[0].metadata == metadata(next(iter(first[1])), 10)


@pytest.mark.parametrize("offset", [0, 3, 5])
async def test_a_group_that_is_set_back_begins_another_one(kafka: Kafka, offset: int) -> None:
    """To where it was as well; and the new one goes on likewise."""
    topic = await filled(kafka)
    _, first = await read(topic, 5, settled=5)
    await commit(topic, offset)
    offsets, second = await read(topic, 2, settled=0)
    assert offsets == [offset, offset + 1]
    assert first.isdisjoint(second)
    assert await read(topic, 2, settled=2) == (offsets, second)
    assert (await read(topic, 2, settled=0))[1] == second


async def test_a_mark_of_ours_counts_for_its_own_offset_alone(kafka: Kafka) -> None:
    """A tool that translates offsets from elsewhere, or moves them, may keep what was committed with them."""
    topic = await filled(kafka)
    _, first = await read(topic, 5, settled=5)
    kept = (await committed(topic))[0].metadata
    await commit(topic, 2, kept)
    offsets, second = await read(topic, 2, settled=0)
    assert offsets == [2, 3]
    assert first.isdisjoint(second)


@pytest.mark.parametrize(
    "text",
    ["", "another tool's", "sharedstream", "sharedstream::5", "sharedstream:abc:", "sharedstream:abc:5:", "ß" * 500],
)
async def test_what_somebody_else_committed_is_where_it_goes_on(kafka: Kafka, text: str) -> None:
    """An older version of this package too, which committed nothing but offsets."""
    topic = await filled(kafka)
    await commit(topic, 5, text)
    offsets, (history,) = await read(topic, 5, settled=5)
    assert offsets == [5, 6, 7, 8, 9]
    assert (await committed(topic))[0].metadata == metadata(history, 10)


async def test_a_group_of_an_older_version_goes_on_and_loses_nothing(kafka: Kafka) -> None:
    topic = await kafka.topic(3)
    await topic.send_json([{"n": n} for n in range(300)])
    had = await other_member(topic)
    assert len(had) == 300
    await topic.send_json([{"n": n} for n in range(300, 400)])
    assert {at.metadata for at in (await committed(topic)).values()} == {""}
    async with triggerer() as running:
        watcher = running.start(topic.trigger(dedupe_window_seconds=3600.0))
        await until(emptied(topic), "everything committed")
        assert sorted(body["n"] for body in watcher.bodies) == list(range(300, 400))
    assert None not in map(history_of, (await committed(topic)).values())


async def test_a_watcher_that_remembers_gets_what_was_set_back_meanwhile(kafka: Kafka) -> None:
    """The group threw it out, since its event loop was blocked; its memory is as it was."""
    connect(kafka.server, "kafka_thrown_out", {"session.timeout.ms": "1500", "heartbeat.interval.ms": "300"})
    topic = await filled(kafka)
    topic.conn_id = "kafka_thrown_out"

    def set_back() -> None:
        time.sleep(4)
        asyncio.run(commit(topic, 3))

    async with triggerer() as running:
        watcher = running.start(topic.trigger(dedupe_window_seconds=3600.0))
        await until(emptied(topic), "everything committed")
        with ThreadPoolExecutor() as pool:
            pool.submit(set_back).result()
        await until(lambda: len(watcher.ids) >= 17, "what was set back")
        await until(emptied(topic), "everything committed again")
        assert Counter(body["n"] for body in watcher.bodies) == {n: 1 if n < 3 else 2 for n in range(10)}


async def test_what_is_kept_in_a_rebalance_keeps_it_and_what_moves_takes_it_along(kafka: Kafka) -> None:
    topic = await kafka.topic(4)
    for partition in range(4):
        await topic.send_json([{"n": n} for n in range(10)], partition=partition)
    first = await connected(topic, Revocations())
    got: list[Any] = []
    while len(got) < 40:
        got += await first.receive(1000)
    histories = {one.lane: one.history for one in got}
    assert len(set(histories.values())) == 4
    joining = asyncio.create_task(connected(topic, Revocations()))
    await poll_until(first, lambda: len(lanes_of(first)) == 2)
    second = await joining
    moved: list[Any] = []
    while len(moved) < 20:
        moved += await second.receive(1000)
    assert {one.lane: one.history for one in moved} == {lane: histories[lane] for lane in lanes_of(second)}
    await second.close()
    back = await poll_until(first, lambda: len(lanes_of(first)) == 4)
    while len(back) < 20:
        back += await first.receive(1000)
    assert all(one.history == histories[one.lane] for one in back)
    await first.close()


def test_a_mark_is_read_as_it_was_written() -> None:
    class At:
        offset = 2**62
        metadata = metadata("abcdefgh", 2**62)

    assert history_of(At) == "abcdefgh"
    assert len(metadata(new_history(), 2**63 - 1)) <= 41
    assert len({new_history() for _ in range(1000)}) == 1000

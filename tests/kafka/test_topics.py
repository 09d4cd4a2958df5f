"""Which topics are read, where a partition begins, and what topics may be like."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewPartitions
from aiokafka.errors import TopicAlreadyExistsError

from airflow_provider_sharedstream.brokers.kafka.topics import Topics
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import Kafka, Topic, connect
from tests.kafka.test_stream import emptied, numbers

SOON = {"metadata.max.age.ms": "500"}
"""How soon a new topic or partition is seen."""


@pytest.fixture
def soon(kafka: Kafka) -> str:
    connect(kafka.server, "kafka_soon", SOON)
    return "kafka_soon"


async def read(topic: Topic, count: int, **more: Any) -> list[int]:
    """What a stream of its own gets."""
    async with triggerer() as running:
        watcher = running.start(topic.trigger(**more))
        await until(lambda: len(watcher.ids) >= count, f"{count} records")
        await until(emptied(topic), "everything committed")
        return numbers(watcher)


async def joined(topic: Topic) -> None:
    await until(lambda: _members(topic), "a member")


async def _members(topic: Topic) -> bool:
    return await topic.members() == 1


async def test_latest_begins_with_what_comes_after_the_first_look(kafka: Kafka) -> None:
    topic = await kafka.topic(3)
    await asyncio.gather(*(topic.send_json([{"n": -1}] * 10, partition=p) for p in range(3)))
    consumer = topic.consumer(auto_offset_reset="latest")
    await consumer.connect()
    # Before anything is polled.
    await topic.send_json([{"n": n} for n in range(30)])
    found: list[bytes] = []
    await until(lambda: _more(consumer, found, 30), "thirty")
    assert sorted(found) == sorted(f'{{"n": {n}}}'.encode() for n in range(30))
    # The beginning is committed, so that another member begins there too, and not at an end that has moved.
    await consumer.close()
    assert sum((await topic.committed()).values()) == 30
    assert sorted(await read(topic, 30, auto_offset_reset="latest")) == list(range(30))


async def _more(consumer: Any, found: list[bytes], count: int) -> bool:
    found += [delivery.body for delivery in await consumer.receive(100)]
    return len(found) >= count


async def test_earliest_begins_at_the_beginning(kafka: Kafka) -> None:
    topic = await kafka.topic(3)
    await topic.send_json([{"n": n} for n in range(50)])
    assert sorted(await read(topic, 50, auto_offset_reset="earliest")) == list(range(50))


async def test_none_says_that_nothing_is_committed(kafka: Kafka) -> None:
    topic = await kafka.topic(1)
    consumer = topic.consumer(auto_offset_reset="none")
    await consumer.connect()
    with pytest.raises(SourceUnavailable, match=r"auto_offset_reset='none': the group has no committed offset for"):
        await until(lambda: _more(consumer, [], 1), "an error")
    await consumer.close()


@pytest.mark.parametrize("reset", ["earliest", "latest"])
async def test_a_partition_that_is_added_is_read_from_its_beginning(kafka: Kafka, soon: str, reset: Any) -> None:
    topic = await kafka.topic(1)
    async with triggerer() as running:
        watcher = running.start(topic.trigger(auto_offset_reset=reset, kafka_config_id=soon))
        await joined(topic)
        async with kafka.server.admin() as admin:
            await admin._client.create_partitions({topic.name: NewPartitions(4)})
            topic.partitions = 4
            await until(lambda: _has_partitions(topic, 4), "four partitions")
        # Most likely before the member has seen them.
        await asyncio.gather(*(topic.send_json([{"n": p}], partition=p) for p in range(4)))
        await until(lambda: sorted(numbers(watcher)) == [0, 1, 2, 3], "one of each partition")
        await until(emptied(topic), "everything committed")


async def _has_partitions(topic: Topic, count: int) -> bool:
    return len(await topic.ends()) == count


async def test_what_retention_has_deleted_is_said_and_the_rest_is_read(
    kafka: Kafka, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(10)])
    assert await read(topic, 10) == list(range(10))
    await topic.send_json([{"n": n} for n in range(10, 30)])
    async with kafka.server.admin() as admin:
        from aiokafka import TopicPartition
        from aiokafka.admin.records_to_delete import RecordsToDelete

        await admin._client.delete_records({TopicPartition(topic.name, 0): RecordsToDelete(before_offset=20)})
    with caplog.at_level(logging.ERROR):
        # Even with latest, which would jump to the end.
        assert await read(topic, 10, auto_offset_reset="latest") == list(range(20, 30))
    assert f"{topic.name}[0]: retention deleted up to 10 records before they were read" in caplog.text


async def test_a_pattern_reads_topics_that_are_created_later_from_their_beginning(kafka: Kafka, soon: str) -> None:
    first = await kafka.topic(2, dead_letters=False)
    prefix = first.name
    pattern = first.trigger(topics=[f"^{prefix}.*"], kafka_config_id=soon, auto_offset_reset="latest")
    async with triggerer() as running:
        watcher = running.start(pattern)
        await joined(first)
        await first.send_json([{"n": n} for n in range(10)])
        later = await kafka.topic(2, name=f"{prefix}-later", dead_letters=False)
        later.group = first.group
        await kafka.topic(1, name=f"x{prefix}", dead_letters=False)
        await later.send_json([{"n": n} for n in range(10, 20)])
        await until(lambda: sorted(set(numbers(watcher))) == list(range(20)), "the records of both")
        await until(emptied(first), "everything committed")
        await until(emptied(later), "everything committed")
        assert {message["attributes"]["topic"] for message in watcher.messages} == {first.name, later.name}
        assert not watcher.restarts


async def test_a_missing_topic_is_waited_for_if_that_is_wanted(
    kafka: Kafka, soon: str, caplog: pytest.LogCaptureFixture
) -> None:
    there = await kafka.topic(1, dead_letters=False)
    names = [there.name, f"{there.name}-later"]
    async with triggerer() as running:
        watcher = running.start(
            there.trigger(topics=names, kafka_config_id=soon, missing_topics="wait", auto_offset_reset="latest")
        )
        await joined(there)
        await there.send_json([{"n": 0}])
        await until(lambda: numbers(watcher) == [0], "the topic that is there")
        later = await kafka.topic(1, name=names[1], dead_letters=False)
        await later.send_json([{"n": 1}])
        await until(lambda: numbers(watcher) == [0, 1], "the topic that came later")
    waiting = [record for record in caplog.records if "not there yet" in record.getMessage()]
    assert len(waiting) == 1


async def test_a_topic_that_is_deleted_is_said(kafka: Kafka, soon: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.EVERY_SECONDS", 0.2)
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.SILENCE_SECONDS", 2.0)
    topic = await kafka.topic(1)
    await topic.send_json([{"n": 0}])
    consumer = topic.consumer(kafka_config_id=soon)
    await consumer.connect()
    await until(lambda: _more(consumer, [], 1), "the record")
    async with kafka.server.admin() as admin:
        await admin.delete_topic(topic.name)
    with pytest.raises(SourceUnavailable, match=f"topics=\\['{topic.name}'\\]: there is no such topic"):
        await until(lambda: _more(consumer, [], 1), "an error")
    await consumer.close()


async def test_a_topic_that_is_made_anew_is_read_and_committed_from_its_beginning(kafka: Kafka, soon: str) -> None:
    topic = await kafka.topic(1)
    await topic.send_json([{"n": n} for n in range(10)])
    async with triggerer() as running:
        watcher = running.start(topic.trigger(kafka_config_id=soon))
        await until(lambda: numbers(watcher) == list(range(10)), "the records of the first one")
        await until(emptied(topic), "everything committed")
        async with kafka.server.admin() as admin:
            await admin.delete_topic(topic.name)
            await until(lambda: _created(admin, topic), "the topic made anew")
        await topic.send_json([{"n": n} for n in range(10, 15)])
        await until(lambda: numbers(watcher)[10:] == list(range(10, 15)), "the records of the second one")
        await until(lambda: _committed(topic, {0: 5}), "everything committed")


async def _created(admin: Any, topic: Topic) -> bool:
    try:
        await admin.create_topic(topic.name, 1)
    except TopicAlreadyExistsError:
        # Its deletion takes a moment.
        return False
    return True


async def _committed(topic: Topic, expected: dict[int, int]) -> bool:
    return await topic.committed() == expected


async def test_a_compacted_topic_has_gaps_and_tombstones(kafka: Kafka) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = await kafka.topic(1, settings=settings)
    for n in range(5):
        await topic.send_json([{"n": n}], key=b"a")
        await topic.send([None], key=b"b")
        await asyncio.sleep(0.2)
    await topic.send_json([{"n": 5}], key=b"end")

    async def compacted() -> bool:
        consumer = topic.consumer(group_id="looks")
        await consumer.connect()
        found: list[int] = []
        while True:
            some = await consumer.receive(100)
            found += [delivery.offset for delivery in some]  # type: ignore[attr-defined]
            if not some or found[-1] == 10:
                break
        await consumer.close()
        return len(found) < 11

    await until(compacted, "compaction")
    async with triggerer() as running:
        watcher = running.start(topic.trigger(batch_size=1))
        await until(emptied(topic), "everything committed")
        offsets = [message["attributes"]["offset"] for message in watcher.messages]
        assert offsets == sorted(offsets)
        assert offsets[-1] == 10
        assert len(offsets) < 11
        assert None in watcher.bodies


async def test_transactions(kafka: Kafka) -> None:
    """By default only what is committed is read, in order, and nothing from behind an open transaction."""
    topic = await kafka.topic(1)
    async with triggerer() as running:
        watcher = running.start(topic.trigger())
        producer = AIOKafkaProducer(bootstrap_servers=kafka.server.bootstrap, transactional_id=f"tx-{topic.name}")
        async with producer:
            async with producer.transaction():
                await producer.send_and_wait(topic.name, b'{"n": 0}')
            await until(lambda: numbers(watcher) == [0], "the first transaction")
            await producer.begin_transaction()
            await producer.send_and_wait(topic.name, b'{"n": -1}')
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.send_and_wait(topic.name, b'{"n": 1}')
            await topic.send_json([{"n": 2}])
            await asyncio.sleep(2)
            assert numbers(watcher) == [0], "something from a transaction that is open, or from behind it"
            await producer.commit_transaction()
        await until(lambda: numbers(watcher) == [0, 1, 2], "the second transaction")
    connect(kafka.server, "kafka_uncommitted", {"isolation.level": "read_uncommitted"})
    topic.group += "-uncommitted"
    async with triggerer() as running:
        watcher = running.start(topic.trigger(kafka_config_id="kafka_uncommitted"))
        await until(lambda: numbers(watcher) == [0, -1, 1, 2], "everything")


def test_topics_are_names_and_patterns() -> None:
    topics = Topics(["orders", "^eu\\..*", "^us-(a|b)$"])
    for name in ("orders", "eu.x", "us-a"):
        assert name in topics
        assert re.match(topics.pattern or "", name)
    for name in ("orders-b", "xeu.x", "us-c", "eux"):
        assert name not in topics
        assert not re.match(topics.pattern or "", name)
    assert topics.missing(["eu.x"]) == ["orders"]
    assert Topics(["a", "b"]).pattern is None
    assert Topics(["a", "b"]).overlap(Topics(["b", "c"]))
    assert Topics(["^a"]).overlap(Topics(["abc"]))
    assert Topics(["abc"]).overlap(Topics(["^a"]))
    assert Topics(["^a"]).overlap(Topics(["^a"]))
    assert not Topics(["a"]).overlap(Topics(["b", "^c"]))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topics": []}, "topics=[]"),
        ({"topics": [1]}, "topics=[1]"),
        ({"topics": ["^("]}, "'^(' is not a regular expression"),
        ({"topics": ["a"], "dead_letter_topic": "a"}, "dead_letter_topic='a' is one of the topics that are read"),
        ({"topics": ["^a.*"], "dead_letter_topic": "a-bad"}, "dead_letter_topic='a-bad' is one of the topics"),
        ({"topics": ["a"], "auto_offset_reset": "middle"}, "auto_offset_reset='middle'"),
        ({"topics": ["a"], "missing_topics": "ignore"}, "missing_topics='ignore'"),
        ({"topics": ["a"], "dlq_topic": "b"}, "dlq_topic='b': there is no such argument"),
    ],
)
def test_wrong_arguments_are_named_when_the_dag_is_parsed(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        KafkaSharedStreamTrigger(**arguments).serialize()
    assert text in str(caught.value)


def test_the_same_topics_in_another_order_are_the_same_stream() -> None:
    first, second = KafkaSharedStreamTrigger(["b", "a"]), KafkaSharedStreamTrigger(("a", "b", "a"))
    assert first.shared_stream_key() == second.shared_stream_key()
    assert first.serialize() == second.serialize()
    assert KafkaSharedStreamTrigger("a").serialize() == KafkaSharedStreamTrigger(["a"]).serialize()
    assert (
        KafkaSharedStreamTrigger("a", group_id="g").shared_stream_key()
        != KafkaSharedStreamTrigger("a").shared_stream_key()
    )


async def test_two_streams_of_one_group_do_not_take_one_topic_from_each_other(kafka: Kafka) -> None:
    topic, other = await kafka.topic(2), await kafka.topic(2)
    first = topic.consumer()
    await first.connect()
    second = topic.consumer(topics=[topic.name, other.name])
    with pytest.raises(SourceUnavailable, match="another stream here reads"):
        await second.connect()
    third = topic.consumer(topics=[other.name])
    await third.connect()
    await first.close()
    await third.close()
    await second.connect()
    await second.close()

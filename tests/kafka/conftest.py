"""A Kafka broker of one node for most tests of this folder, and topics on it."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.structs import ConsumerRecord

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from services.kafka import KafkaServer

NUMBERS = itertools.count()

QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}
"""A member notices soon that the group rebalances."""


class Topic:
    """A topic, the group that reads it, and the Airflow connection.

    :param partitions: how many.
    :param dead_letter_topic: its name, or None.
    """

    def __init__(self, server: KafkaServer, conn_id: str, name: str, partitions: int, dead_letter_topic: str | None):
        self.server = server
        self.conn_id = conn_id
        self.name = name
        self.group = f"group-{name}"
        self.partitions = partitions
        self.dead_letter_topic = dead_letter_topic

    def arguments(self, **more: Any) -> dict[str, Any]:
        own = {
            "topics": [self.name],
            "kafka_config_id": self.conn_id,
            "group_id": self.group,
            "auto_offset_reset": "earliest",
            "dead_letter_topic": self.dead_letter_topic,
        }
        return {**own, **more}

    def trigger(self, **more: Any) -> KafkaSharedStreamTrigger:
        return KafkaSharedStreamTrigger(**self.arguments(**more))

    def consumer(self, **more: Any) -> KafkaConsumer:
        return KafkaConsumer(**self.arguments(**more))

    async def send(
        self,
        values: Sequence[bytes | None],
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes]] = (),
    ) -> None:
        pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
        async with self.server.admin() as admin:
            await admin.send(self.name, values, partition=partition, key=key, headers=pairs)

    async def send_json(self, bodies: Sequence[Any], **more: Any) -> None:
        await self.send([json.dumps(body).encode() for body in bodies], **more)

    async def committed(self) -> dict[int, int]:
        """By partition."""
        async with self.server.admin() as admin:
            found = await admin.committed(self.group)
        return {lane.partition: offset for lane, offset in found.items() if lane.topic == self.name}

    async def ends(self) -> dict[int, int]:
        async with self.server.admin() as admin:
            return {lane.partition: offset for lane, offset in (await admin.ends(self.name)).items()}

    async def pending(self) -> int:
        """Records that the group hasn't committed."""
        committed = await self.committed()
        return sum(end - committed.get(number, 0) for number, end in (await self.ends()).items())

    async def members(self) -> int:
        async with self.server.admin() as admin:
            return len(await admin.members(self.group))

    async def dead_letters(self) -> list[ConsumerRecord[bytes | None, bytes | None]]:
        assert self.dead_letter_topic is not None
        return await records_of(self.server, self.dead_letter_topic)


async def other_member(topic: Topic, seconds: float = 3.0) -> list[int]:
    """Another client joins the group, reads and commits for ``seconds``, and leaves. Returns what it has read."""
    found: list[int] = []
    async with AIOKafkaConsumer(
        topic.name,
        bootstrap_servers=topic.server.bootstrap,
        group_id=topic.group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=500,
        partition_assignment_strategy=(RangePartitionAssignor,),
    ) as other:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for records in (await other.getmany(timeout_ms=200)).values():
                found += [json.loads(record.value or b"{}")["n"] for record in records]
            if other.assignment():
                await other.commit()
    return found


async def records_of(server: KafkaServer, topic: str) -> list[ConsumerRecord[bytes | None, bytes | None]]:
    """All that a topic holds."""
    async with server.admin() as admin:
        ends = await admin.ends(topic)
    found: list[ConsumerRecord[bytes | None, bytes | None]] = []
    async with AIOKafkaConsumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(list(ends))
        await consumer.seek_to_beginning()
        while any([await consumer.position(lane) < end for lane, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += records
    return found


class Kafka:
    """The server, and the Airflow connection to it."""

    conn_id = "kafka_tests"

    def __init__(self, server: KafkaServer) -> None:
        self.server = server

    async def topic(
        self,
        partitions: int = 3,
        *,
        dead_letters: bool = True,
        name: str | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> Topic:
        """A fresh topic, with a dead-letter topic beside it."""
        name = name or f"t{next(NUMBERS)}-{os.getpid()}"
        dead_letter_topic = f"{name}-rejected" if dead_letters else None
        async with self.server.admin() as admin:
            await admin.create_topic(name, partitions, settings=settings)
            if dead_letter_topic is not None:
                await admin.create_topic(dead_letter_topic)
        return Topic(self.server, self.conn_id, name, partitions, dead_letter_topic)


def connect(server: KafkaServer, conn_id: str, extra: Mapping[str, str] | None = None) -> None:
    """Make an Airflow connection."""
    os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = server.connection({**QUICK, **(extra or {})})


def lanes(topic: Topic) -> list[TopicPartition]:
    return [TopicPartition(topic.name, number) for number in range(topic.partitions)]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as server:
        connect(server, Kafka.conn_id)
        print(f"\nKafka tests run on {server.taken}")
        yield Kafka(server)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One with every way in."""
    # A connection is closed when its token has run out, or after five seconds.
    settings = {"connections.max.reauth.ms": "5000"}
    with KafkaServer(tmp_path_factory.mktemp("kafka-secure"), secure=True, settings=settings) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")

"""Kafka, held to the definition of an adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance
from tests.kafka.conftest import Kafka, Topic


class KafkaSource:
    """A topic of four partitions; a key is a lane by its letter."""

    def __init__(self, topic: Topic, *, ordered: bool) -> None:
        self.topic = topic
        self.ordered = ordered

    def consumer(self) -> KafkaConsumer:
        return self.topic.consumer()

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        partition = ord(key) % self.topic.partitions if self.ordered and key else None
        encoded = {name: value.encode() for name, value in (headers or {}).items()}
        await self.topic.send(bodies, partition=partition, key=key.encode() if key else None, headers=encoded)

    async def pending(self) -> int:
        return await self.topic.pending()

    async def dead_letters(self) -> Sequence[DeadLetter]:
        return [
            DeadLetter(record.value, {name: (value or b"").decode() for name, value in record.headers})
            for record in await self.topic.dead_letters()
        ]


class KafkaHarness:
    # Membership of the group stands in its place, and is renewed by aiokafka in the background.
    lease_seconds = None
    gaps: Mapping[str, str] = {}

    def __init__(self, kafka: Kafka) -> None:
        self.kafka = kafka

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> KafkaSource:
        return KafkaSource(await self.kafka.topic(4, dead_letters=dead_letters), ordered=ordered)

    def missing(self) -> KafkaConsumer:
        return KafkaConsumer(["no-such-topic"], kafka_config_id=self.kafka.conn_id, group_id="nobody")

    async def restart(self) -> None:
        await asyncio.to_thread(self.kafka.server.restart)

    async def cut(self) -> None:
        # Clients go to the address that the broker names, past any proxy: so the broker goes, without a goodbye.
        await asyncio.to_thread(self.kafka.server.kill)

    async def heal(self) -> None:
        await asyncio.to_thread(self.kafka.server.start)


class TestKafka(Conformance):
    @pytest.fixture
    def harness(self, kafka: Kafka) -> KafkaHarness:
        return KafkaHarness(kafka)

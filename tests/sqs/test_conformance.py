"""SQS, held to the definition of an adapter. Runs in both environments: aioboto3's, and the official provider's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_sharedstream.brokers.sqs.adapter import SqsConsumer
from services.sqs_queue import SqsQueue
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance
from tests.sqs.conftest import Sqs


class SqsSource:
    def __init__(self, sqs: Sqs, queue: SqsQueue) -> None:
        self.sqs = sqs
        self.queue = queue

    def consumer(self) -> SqsConsumer:
        return SqsConsumer(self.queue.name, aws_conn_id=self.sqs.conn_id, wait_time_seconds=1)

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in (headers or {}).items()}
        if self.queue.name.endswith(".fifo"):
            key = key or "all"
        await asyncio.to_thread(self.queue.send, [body.decode() for body in bodies], attributes=attributes, group=key)

    async def pending(self) -> int:
        return (await asyncio.to_thread(self.queue.depth)).total

    async def dead_letters(self) -> Sequence[DeadLetter]:
        assert self.queue.dead_letters is not None
        if not hasattr(self, "_taken"):
            self._taken: list[DeadLetter] = []
        for message in await asyncio.to_thread(self.queue.dead_letters.take):
            headers = {name: value["StringValue"] for name, value in message.get("MessageAttributes", {}).items()}
            self._taken.append(DeadLetter(message["Body"], headers))
        return self._taken


class SqsHarness:
    lease_seconds = 3.0
    gaps: Mapping[str, str] = {}

    def __init__(self, sqs: Sqs) -> None:
        self.sqs = sqs

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> SqsSource:
        queue = await asyncio.to_thread(
            lambda: self.sqs.queue(fifo=ordered, dead_letters=dead_letters, visibility_timeout=int(self.lease_seconds))
        )
        return SqsSource(self.sqs, queue)

    def missing(self) -> SqsConsumer:
        return SqsConsumer("no-such-queue", aws_conn_id=self.sqs.conn_id)

    async def restart(self) -> None:
        await asyncio.to_thread(self.sqs.server.restart)

    async def cut(self) -> None:
        await asyncio.to_thread(self.sqs.proxy.cut)

    async def heal(self) -> None:
        await asyncio.to_thread(self.sqs.proxy.heal)


class TestSqs(Conformance):
    @pytest.fixture
    def harness(self, sqs: Sqs) -> SqsHarness:
        return SqsHarness(sqs)

"""Service Bus, held to the definition of an adapter: queues, and sessions where order is asked for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_sharedstream.brokers.service_bus.adapter import ServiceBusConsumer
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance
from tests.service_bus.conftest import ServiceBus, body_of


class ServiceBusSource:
    """A queue; without a place for dead letters, the dead-letter queue of one."""

    def __init__(self, service_bus: ServiceBus, queue: str, *, ordered: bool, dead_letters: bool) -> None:
        self.service_bus = service_bus
        self.queue = queue
        self.ordered = ordered
        self.has_dead_letters = dead_letters
        self._taken: list[DeadLetter] = []

    def consumer(self) -> ServiceBusConsumer:
        return ServiceBusConsumer(
            self.queue,
            azure_service_bus_conn_id=self.service_bus.conn_id,
            session_enabled=self.ordered,
            sub_queue=None if self.has_dead_letters else "deadletter",
        )

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        session = key or ("all" if self.ordered else None)
        await asyncio.to_thread(self.service_bus.send, self.queue, bodies, session_id=session, properties=headers)
        if not self.has_dead_letters:
            await asyncio.to_thread(self.service_bus.bury, self.queue, len(bodies))

    async def pending(self) -> int:
        if not self.has_dead_letters:
            return await asyncio.to_thread(self.service_bus.count_dead_letters, self.queue)
        return await asyncio.to_thread(self.service_bus.server.pending, self.queue)

    async def dead_letters(self) -> Sequence[DeadLetter]:
        for message in await asyncio.to_thread(self.service_bus.take_dead_letters, self.queue):
            headers = {
                name.decode(): value.decode()
                for name, value in message.application_properties.items()
                if not name.startswith(b"DeadLetter")
            }
            headers["x-sharedstream-reason"] = message.dead_letter_reason
            for name, value in json.loads(str(message.dead_letter_error_description)).items():
                headers[f"x-sharedstream-{name.replace('_', '-')}"] = str(value)
            self._taken.append(DeadLetter(body_of(message), headers))
        return self._taken


class ServiceBusHarness:
    lease_seconds = 5.0
    """The least that Service Bus takes."""
    gaps: Mapping[str, str] = {}

    def __init__(self, service_bus: ServiceBus) -> None:
        self.service_bus = service_bus

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> ServiceBusSource:
        queue = await asyncio.to_thread(
            lambda: self.service_bus.queue(lock_seconds=self.lease_seconds, requires_session=ordered)
        )
        return ServiceBusSource(self.service_bus, queue, ordered=ordered, dead_letters=dead_letters)

    def missing(self) -> ServiceBusConsumer:
        return ServiceBusConsumer("no-such-queue", azure_service_bus_conn_id=self.service_bus.conn_id)

    async def restart(self) -> None:
        await asyncio.to_thread(self.service_bus.server.restart)

    async def cut(self) -> None:
        await asyncio.to_thread(self.service_bus.proxy.cut)

    async def heal(self) -> None:
        await asyncio.to_thread(self.service_bus.proxy.heal)


class TestServiceBus(Conformance):
    @pytest.fixture
    def harness(self, service_bus: ServiceBus) -> ServiceBusHarness:
        return ServiceBusHarness(service_bus)

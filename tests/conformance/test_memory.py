"""The memory broker: the adapter's contract as an example, held to it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_sharedstream.brokers.memory import QUEUES, MemoryConsumer, MemoryQueue
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance

NUMBERS = itertools.count()


class MemorySource:
    def __init__(self, *, ordered: bool, dead_letters: bool, lease_seconds: float) -> None:
        self.name = f"queue-{next(NUMBERS)}"
        self.queue = QUEUES[self.name] = MemoryQueue(
            ordered=ordered, lease_seconds=lease_seconds, has_dead_letters=dead_letters
        )

    def consumer(self) -> MemoryConsumer:
        return MemoryConsumer(self.name)

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        for body in bodies:
            self.queue.publish(body, key=key, headers=dict(headers or {}))

    async def pending(self) -> int:
        return len(self.queue.messages)

    async def dead_letters(self) -> Sequence[DeadLetter]:
        return [DeadLetter(stored.body, stored.headers) for stored in self.queue.dead_letters]


class MemoryHarness:
    lease_seconds = 1.0
    gaps: Mapping[str, str] = {}

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> MemorySource:
        return MemorySource(ordered=ordered, dead_letters=dead_letters, lease_seconds=self.lease_seconds)

    def missing(self) -> MemoryConsumer:
        return MemoryConsumer("no-such-queue")

    async def restart(self) -> None:
        """A broker in the process can't be restarted; what the machine sees of one is the same as of `cut`."""

    async def cut(self) -> None:
        MemoryQueue.reachable = False

    async def heal(self) -> None:
        MemoryQueue.reachable = True


class TestMemory(Conformance):
    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()

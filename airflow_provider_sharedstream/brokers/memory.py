"""A broker in memory: the adapter's contract as an example that runs.

It has what a good broker has, with nothing of a network: leases, delayed release, delivery counts, ordered lanes that
are locked while one of theirs is with somebody (as an SQS FIFO queue's groups are), and dead letters. It isn't for
production: what it holds ends with the process.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from airflow_provider_sharedstream.stream.consumer import (
    NO_FAILURES,
    BrokerLimits,
    Capabilities,
    Failures,
    LaneOwner,
)
from airflow_provider_sharedstream.stream.dead_letter import note
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

WAIT_SECONDS = 1.0
"""How long a receive waits when there is nothing."""


@dataclass(eq=False)
class Stored:
    """A message in the broker."""

    id: str
    body: bytes | str | None
    headers: dict[str, Any]
    key: str | None
    visible_at: float = 0.0
    count: int = 0
    holder: object | None = None


@dataclass(eq=False)
class MemoryQueue:
    """A queue.

    :param ordered: messages of one key are a lane, locked while one of them is with somebody.
    :param lease_seconds: how long a delivery belongs to who received it.
    :param has_dead_letters: whether there is a place for dead letters.
    """

    ordered: bool = False
    lease_seconds: float = 30.0
    has_dead_letters: bool = True
    messages: dict[str, Stored] = field(default_factory=dict)
    dead_letters: list[Stored] = field(default_factory=list)
    ids: itertools.count[int] = field(default_factory=itertools.count)
    reachable: ClassVar[bool] = True
    """False: as if the network were cut, to every queue."""

    def publish(
        self, body: bytes | str | None, *, headers: dict[str, Any] | None = None, key: str | None = None
    ) -> str:
        """Add a message; return its id."""
        stored = Stored(f"m{next(self.ids)}", body, headers or {}, key)
        self.messages[stored.id] = stored
        return stored.id

    def take(self, most: int) -> list[Stored]:
        """Hand out what is free, in order, each under a new lease."""
        now = time.monotonic()
        taken: list[Stored] = []
        # Within one receive a lane's messages come together; across receives the lane is locked.
        locked = {s.key for s in self.messages.values() if s.holder is not None and s.visible_at > now}
        for stored in self.messages.values():
            if len(taken) >= most:
                break
            lane = stored.key if self.ordered else None
            if stored.visible_at > now:
                if lane is not None:
                    locked.add(lane)
                continue
            if lane is not None and lane in locked:
                continue
            stored.visible_at = now + self.lease_seconds
            stored.count += 1
            stored.holder = object()
            taken.append(stored)
        return taken

    def held(self, message_id: str, holder: object) -> Stored | None:
        """Return the message if ``holder`` has it; None if it has gone; raise if it is somebody else's."""
        stored = self.messages.get(message_id)
        if stored is None:
            return None
        if stored.holder is not holder or stored.visible_at <= time.monotonic():
            raise LeaseLost(f"{message_id} is no longer held by this consumer")
        return stored


QUEUES: dict[str, MemoryQueue] = {}
"""The broker's queues by name."""


class MemoryConsumer:
    """One connection to one queue.

    :param queue: its name.
    """

    source = "memory"

    def __init__(self, queue: str) -> None:
        self.stream = queue
        self.identity = f"memory:{queue}"
        self.capabilities = Capabilities(ordered_lanes=queue in QUEUES and QUEUES[queue].ordered)
        self.limits = BrokerLimits(receive_batch=10, settle_batch=10)
        self.lane_owner: LaneOwner | None = None
        self._queue: MemoryQueue | None = None

    @property
    def dead_letter_place(self) -> str | None:
        return "its dead letters" if self._queue is not None and self._queue.has_dead_letters else None

    async def connect(self) -> None:
        if self.stream not in QUEUES:
            raise SourceUnavailable(f"queue={self.stream!r}: there is no such queue; the broker has {sorted(QUEUES)}")
        self._queue = QUEUES[self.stream]
        self._connected()
        self.limits = BrokerLimits(
            receive_batch=10, settle_batch=10, lease_seconds=self._queue.lease_seconds, parallel_receives=4
        )

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            queue = self._connected()
            if (taken := queue.take(max_messages)) or time.monotonic() >= deadline:
                break
            await asyncio.sleep(0.02)
        return [
            Delivery(
                id=stored.id,
                body=stored.body,
                headers=stored.headers,
                key=stored.key,
                lane=stored.key if queue.ordered else None,
                delivery_count=stored.count,
                handle=stored.holder,
            )
            for stored in taken
        ]

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        queue = self._connected()
        failures: dict[Delivery, BaseException] = {}
        for delivery in deliveries:
            try:
                stored = queue.held(delivery.id, delivery.handle)
            except LeaseLost as lost:
                failures[delivery] = lost
                continue
            if stored is None:
                continue
            if disposition is Disposition.ACCEPT:
                del queue.messages[delivery.id]
            elif disposition is Disposition.RELEASE:
                stored.holder = None
                stored.visible_at = time.monotonic() + delivery.release_delay_seconds
            else:
                raise NotImplementedError(f"{disposition} is not this adapter's")
        return failures

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        queue = self._connected()
        for delivery in deliveries:
            headers = {**delivery.headers, **note(delivery, self.identity).as_headers()}
            queue.dead_letters.append(Stored(delivery.id, delivery.body, headers, delivery.key))
        return NO_FAILURES

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        queue = self._connected()
        lost: list[Delivery] = []
        for delivery in deliveries:
            try:
                stored = queue.held(delivery.id, delivery.handle)
            except LeaseLost:
                lost.append(delivery)
                continue
            if stored is not None:
                stored.visible_at = time.monotonic() + queue.lease_seconds
        return lost

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    async def close(self) -> None:
        self._queue = None

    def _connected(self) -> MemoryQueue:
        if self._queue is None or not MemoryQueue.reachable:
            raise ConnectionError("not connected")
        return self._queue


class MemorySharedStreamProducer(BrokerStreamProducer):
    """The stream of a queue in memory."""

    consumer_class = MemoryConsumer

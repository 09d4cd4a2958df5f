"""What a queue stores: messages, their locks, the order in which they wait; and how a queue is set up."""

from __future__ import annotations

import heapq
import uuid
from dataclasses import dataclass, field

from tests.emulators.service_bus.content import Content


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """What is set when a queue or subscription is made.

    :param lock_seconds: how long a delivered message, or an accepted session, belongs to its receiver.
    :param max_delivery_count: a message abandoned, or let lapse, that often is dead-lettered.
    :param requires_session: every message has a session id, and only session receivers may read.
    :param time_to_live_seconds: for messages that come without one; None: for ever.
    :param dead_letter_expired: whether a message whose time to live is over is dead-lettered, not dropped.
    """

    lock_seconds: float = 60.0
    max_delivery_count: int = 10
    requires_session: bool = False
    time_to_live_seconds: float | None = None
    dead_letter_expired: bool = False


@dataclass(slots=True)
class Lock:
    token: uuid.UUID
    until: float


@dataclass(slots=True, eq=False)
class Message:
    content: Content
    sequence_number: int
    enqueued_at: float
    available_at: float
    expires_at: float | None
    delivery_count: int = 0
    deferred: bool = False
    lock: Lock | None = None

    def scheduled(self, now: float) -> bool:
        return self.available_at > now

    def expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages a queue holds, by state; every message is in one state only."""

    active: int
    locked: int
    deferred: int
    scheduled: int
    dead_lettered: int


@dataclass(slots=True)
class Backlog:
    """Sequence numbers of messages that wait for a consumer, lowest first: one given back returns to its place."""

    _heap: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def first(self) -> int:
        return self._heap[0]

    def push(self, message: Message) -> None:
        heapq.heappush(self._heap, message.sequence_number)

    def pop(self) -> int:
        return heapq.heappop(self._heap)

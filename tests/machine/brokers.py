"""Five kinds of broker, reduced to what matters to the machine, that watch over what they are told and make trouble.

They raise AssertionError into `complaints` when something is accepted that must not be: out of its lane's order, or
under a handle that isn't valid any more.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from tests.machine.virtual import now

T = TypeVar("T")

Kind = Literal["free", "locked", "session", "log", "keys"]
KINDS: tuple[Kind, ...] = ("free", "locked", "session", "log", "keys")

CAPABILITIES = {
    # An SQS queue.
    "free": Capabilities(),
    # An SQS FIFO queue: a group is locked while one of its messages is with somebody.
    "locked": Capabilities(ordered_lanes=True),
    # Service Bus sessions: given back whole; nothing waits for a delay; handles die with the link.
    "session": Capabilities(ordered_lanes=True, rewinds=True, delayed_release=False, durable_handles=False),
    # Kafka: a position a partition, cumulative acceptance, no leases, no counts.
    "log": Capabilities(ordered_lanes=True, rewinds=True, delivery_count=False, durable_handles=False),
    # Pub/Sub ordering keys: what was under way when a message was released still arrives.
    "keys": Capabilities(ordered_lanes=True, rewinds=True, stragglers=True),
}


@dataclass(frozen=True)
class Trouble:
    """How likely which trouble is, call by call."""

    fails: float = 0.0
    """Before anything has happened."""
    fails_after: float = 0.0
    """It has happened, and the answer is lost."""
    partly: float = 0.0
    """Of each delivery of a settlement."""
    cancels: float = 0.0
    """The client cancels its caller."""
    slow: float = 0.0
    takes_back: float = 0.0
    """Of each lease, at each receive; sessions and partitions go as a whole."""


@dataclass(eq=False)
class Stored:
    number: int
    lane: str | None
    count: int = 0
    holder: object | None = None
    visible_at: float = 0.0
    done: Disposition | None = None


class ModelConsumer:
    """The one connection to such a broker."""

    source = "model"

    def __init__(self, kind: Kind, dice: random.Random) -> None:
        self.kind = kind
        self.dice = dice
        self.trouble = Trouble()
        self.stream = self.identity = f"model-{kind}-{next(_numbers)}"
        self.capabilities = CAPABILITIES[kind]
        lease_seconds = None if kind == "log" else 10.0
        self.limits = BrokerLimits(
            receive_batch=7,
            settle_batch=5,
            lease_seconds=lease_seconds,
            parallel_receives=3 if kind in ("free", "locked") else 1,
            parallel_settles=3,
        )
        self.dead_letter_place: str | None = "here"
        self.lane_owner: LaneOwner | None = None
        self.lanes: dict[Hashable, list[Stored]] = {}
        self.position: dict[Hashable, int] = {}
        self.wakes_at: dict[Hashable, float] = {}
        self.under_way: list[Delivery] = []
        self.copies: set[int] = set()
        self.fenced: set[object] = set()
        self.complaints: list[str] = []
        self.connected = False

    # What a test does.

    def publish(self, count: int) -> None:
        for _ in range(count):
            lane = None if self.kind == "free" else self.dice.choice("abc")
            line = self.lanes.setdefault(lane, [])
            line.append(Stored(len(line), lane))
            self.position.setdefault(lane, 0)

    @property
    def left(self) -> int:
        return sum(1 for line in self.lanes.values() for stored in line if stored.done is None)

    # The contract.

    async def connect(self) -> None:
        await self._perhaps(lambda: None)
        self.connected = True
        if not self.capabilities.durable_handles:
            self._forget_handles()

    async def close(self) -> None:
        self.connected = False
        # What came and wasn't taken is given back.
        unseen, self.under_way = self.under_way, []
        for one in unseen:
            if self.position[one.lane] > one.handle[0].number:
                self._rewind(one.lane, one.handle[0].number)
        if not self.capabilities.durable_handles:
            self._forget_handles()

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        await self._perhaps(lambda: None)
        for _ in range(10):
            if not self.connected:
                raise ConnectionError("not connected")
            await self._take_back()
            if found := self._take(max_messages):
                return found
            await asyncio.sleep(0.1)
        return ()

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        def do() -> Failures:
            failures: dict[Delivery, BaseException] = {}
            stuck: set[Any] = set()
            for one in deliveries:
                if one.lane is not None and one.lane in stuck:
                    failures[one] = ConnectionError("behind one that failed")
                    continue
                try:
                    if self.dice.random() < self.trouble.partly:
                        raise ConnectionError("this one failed")
                    self._settle(disposition, one)
                except (ConnectionError, LeaseLost) as error:
                    failures[one] = error
                    stuck.add(one.lane)
            return failures

        return await self._perhaps(do)

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        def do() -> Failures:
            failures: dict[Delivery, BaseException] = {}
            for one in deliveries:
                if self.dice.random() < self.trouble.partly:
                    failures[one] = ConnectionError("no copy")
                else:
                    self.copies.add(id(one.handle[0]))
            return failures

        return await self._perhaps(do)

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        def do() -> Collection[Delivery]:
            lost = []
            for one in deliveries:
                stored, holder = one.handle
                # The lock of a session is one for all of it.
                gone = stored.holder is not holder and not (self.kind == "session" and stored.done)
                if gone or stored.visible_at <= now():
                    lost.append(one)
                    continue
                for other in self.lanes[stored.lane] if self.kind == "session" else (stored,):
                    if other.holder is not None or other is stored:
                        other.visible_at = now() + (self.limits.lease_seconds or 0.0)
            return lost

        return await self._perhaps(do)

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    # How it does it.

    async def _perhaps(self, do: Callable[[], T]) -> T:
        """Do it, or what the dice say."""
        trouble, dice = self.trouble, self.dice
        if dice.random() < trouble.slow:
            await asyncio.sleep(dice.random() * 3)
        if dice.random() < trouble.fails:
            raise ConnectionError("failed")
        if dice.random() < trouble.cancels:
            raise asyncio.CancelledError
        await asyncio.sleep(dice.random() * 0.01)
        if do.__name__ == "do" and not self.connected:
            raise ConnectionError("not connected")
        made = do()
        if dice.random() < trouble.fails_after:
            raise ConnectionError("the answer was lost")
        return made

    def _forget_handles(self) -> None:
        for lane, line in self.lanes.items():
            self.fenced.update(stored.holder for stored in line)
            for stored in line:
                stored.holder = None
                stored.visible_at = 0.0
            self.position[lane] = self._committed(lane)
            self.wakes_at[lane] = 0.0

    def _committed(self, lane: Hashable) -> int:
        return next((s.number for s in self.lanes[lane] if s.done is None), len(self.lanes[lane]))

    async def _take_back(self) -> None:
        if self.kind in ("session", "log"):
            for lane in list(self.lanes):
                if self.dice.random() < self.trouble.takes_back:
                    # Somebody else had it for a moment; with or without a warning.
                    if self.lane_owner is not None:
                        await self.lane_owner.lanes_revoked(frozenset({lane}), self.dice.choice([0.0, 1.0]))
                    self.fenced.update(stored.holder for stored in self.lanes[lane])
                    self._rewind(lane, self._committed(lane))
            return
        if self.kind == "keys":
            return
        for line in self.lanes.values():
            for stored in line:
                if stored.holder is not None and self.dice.random() < self.trouble.takes_back:
                    stored.holder = None
                    stored.visible_at = 0.0

    def _deliver(self, stored: Stored) -> Delivery:
        stored.holder = object()
        stored.visible_at = now() + (self.limits.lease_seconds or 1e9)
        stored.count += 1
        return Delivery(
            id=f"{stored.lane}-{stored.number}",
            body=b'{"n": %d}' % stored.number,
            key=stored.lane,
            lane=stored.lane,
            delivery_count=stored.count if self.capabilities.delivery_count else 0,
            handle=(stored, stored.holder),
        )

    def _take(self, most: int) -> list[Delivery]:
        if self.kind in ("log", "keys"):
            return self._take_from_positions(most)
        found: list[Delivery] = []
        for lane, line in self.lanes.items():
            if self.kind == "session" and any(s.holder is not None and s.visible_at <= now() for s in line):
                self.fenced.update(stored.holder for stored in line)
                self._rewind(lane, 0)
            if self.wakes_at.get(lane, 0.0) > now():
                continue
            open_ones = [stored for stored in line if stored.done is None]
            if self.kind == "locked" and any(s.visible_at > now() for s in open_ones):
                continue
            for stored in open_ones:
                if len(found) < most and stored.visible_at <= now():
                    found.append(self._deliver(stored))
        return found

    def _take_from_positions(self, most: int) -> list[Delivery]:
        for lane, line in self.lanes.items():
            lapsed = [s.number for s in line if s.holder is not None and s.visible_at <= now()]
            if self.kind == "keys" and lapsed:
                # From there on everything comes again.
                self.fenced.update(stored.holder for stored in line[min(lapsed) :])
                self._rewind(lane, min(lapsed))
            while self.position[lane] < len(line) and self.wakes_at.get(lane, 0.0) <= now() and len(self.under_way) < 9:
                stored = line[self.position[lane]]
                self.position[lane] += 1
                if stored.done is None:
                    self.under_way.append(self._deliver(stored))
        count = self.dice.randint(1, most)
        found, self.under_way = self.under_way[:count], self.under_way[count:]
        return found

    def _rewind(self, lane: Hashable, number: int) -> None:
        self.position[lane] = min(self.position[lane], number)
        for stored in self.lanes[lane][number:]:
            stored.holder = None
            stored.visible_at = 0.0
        if self.kind == "log":
            self.under_way = [one for one in self.under_way if one.lane != lane]

    def _settle(self, disposition: Disposition, one: Delivery) -> None:
        stored, holder = one.handle
        if disposition is Disposition.ACCEPT:
            if stored.done is not None:
                return
            if stored.holder is not holder:
                # What was taken away is fenced off; what we gave back ourselves isn't.
                if self.capabilities.rewinds and holder not in self.fenced:
                    self.complaints.append(f"{one.id} was accepted after it had been given back")
                raise LeaseLost(one.id)
            if stored.lane is not None and self._committed(stored.lane) != stored.number:
                self.complaints.append(f"{one.id} was accepted before {stored.lane}-{self._committed(stored.lane)}")
            stored.done = Disposition.DEAD_LETTER if id(stored) in self.copies else Disposition.ACCEPT
            stored.holder = None
        elif disposition is Disposition.RELEASE:
            if stored.done is not None or stored.holder is not holder:
                raise LeaseLost(one.id)
            delay = one.release_delay_seconds if self.capabilities.delayed_release else 0.0
            if self.capabilities.rewinds:
                self._rewind(stored.lane, stored.number)
                self.wakes_at[stored.lane] = now() + delay
            else:
                stored.holder = None
                stored.visible_at = now() + delay
        else:
            self.complaints.append(f"{one.id} was told {disposition}")


_numbers = itertools.count()

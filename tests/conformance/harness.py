"""What a broker needs to be put through the conformance suite."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_sharedstream.stream.cohort import cohort_of
from airflow_provider_sharedstream.stream.consumer import (
    BrokerConsumer,
    BrokerLimits,
    Capabilities,
    Failures,
    LaneOwner,
)
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.triggers.arguments import REQUIRED, TEXT, Argument
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger


@dataclass
class DeadLetter:
    """What lies where dead letters go.

    :param body: as it was published.
    :param headers: the original's, and the note's.
    """

    body: Any
    headers: Mapping[str, Any]


class Source(Protocol):
    """A fresh source at the broker: a queue, a topic with its group, a directory."""

    def consumer(self) -> BrokerConsumer:
        """A new adapter on it."""

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Add messages, in order."""

    async def pending(self) -> int:
        """Messages that the broker would deliver, now or later: not accepted and not dead-lettered."""

    async def dead_letters(self) -> Sequence[DeadLetter]:
        """What was dead-lettered so far."""


class Harness(Protocol):
    """A broker.

    `lease_seconds`: of its sources, short; None where it has no lease. `gaps`: names of tests that the broker can't
    pass, each with the reason; they are strict expected failures.
    """

    lease_seconds: float | None
    gaps: Mapping[str, str]

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> Source:
        """Create a source. `ordered`: messages of one key are a lane."""

    def missing(self) -> BrokerConsumer:
        """An adapter on a source that does not exist."""

    async def restart(self) -> None:
        """Restart the broker, its messages kept."""

    async def cut(self) -> None:
        """Cut the network between adapter and broker."""

    async def heal(self) -> None:
        """Mend it."""


@dataclass
class Faults:
    """What `FaultyConsumer` does to the adapter behind it; change it while it runs."""

    fail_every: int = 0
    """Every so many deliveries, one is told to have failed to settle, without the broker hearing of it."""
    renew: bool = True
    """False: lease extensions don't reach the broker."""
    settled: int = 0
    receives: int = 0
    calls: dict[str, int] = field(default_factory=dict)


class FaultyConsumer:
    """Stands in front of any adapter and makes trouble."""

    def __init__(self, inner: BrokerConsumer, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    source = property(lambda self: self._inner.source)
    stream = property(lambda self: self._inner.stream)
    identity = property(lambda self: self._inner.identity)
    dead_letter_place = property(lambda self: self._inner.dead_letter_place)

    @property
    def limits(self) -> BrokerLimits:
        return self._inner.limits

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    @property
    def lane_owner(self) -> LaneOwner | None:
        return self._inner.lane_owner

    @lane_owner.setter
    def lane_owner(self, owner: LaneOwner | None) -> None:
        self._inner.lane_owner = owner

    async def connect(self) -> None:
        await self._inner.connect()

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        self._faults.receives += 1
        return await self._inner.receive(max_messages)

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        self._faults.calls[disposition.value] = self._faults.calls.get(disposition.value, 0) + 1
        through: list[Delivery] = []
        failures: dict[Delivery, BaseException] = {}
        for delivery in deliveries:
            self._faults.settled += 1
            if self._faults.fail_every and self._faults.settled % self._faults.fail_every == 0:
                failures[delivery] = ConnectionResetError("a fault, on purpose")
            else:
                through.append(delivery)
        if through:
            failures.update(await self._inner.settle(disposition, through))
        return failures

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        return await self._inner.store_dead_letters(deliveries)

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        return await self._inner.extend_leases(deliveries) if self._faults.renew else ()

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionResetError) or self._inner.is_transient(error)

    async def close(self) -> None:
        await self._inner.close()


_SOURCES: dict[str, tuple[Any, StreamSettings]] = {}


class SourceTrigger(BrokerEventTrigger):
    """A trigger on any adapter: it names a source that `watch` has put in a table."""

    producer_class = BrokerStreamProducer
    ARGUMENTS = {"name": Argument(REQUIRED, TEXT)}

    def __init__(self, name: str, **common: Any) -> None:
        super().__init__(common, name=name)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        make_consumer, settings = _SOURCES[kwargs["name"]]
        cohort = cohort_of(cls(**kwargs).shared_stream_key())
        producer = BrokerStreamProducer(make_consumer(), settings, cohort=cohort)
        PRODUCERS[kwargs["name"]] = producer
        return producer


PRODUCERS: dict[str, BrokerStreamProducer] = {}
"""The latest producer of each name."""


def offer(name: str, make_consumer: Any, **settings: Any) -> None:
    """Make a source known to `SourceTrigger` by name, with settings that suit a test."""
    defaults: dict[str, Any] = {"batch_window_seconds": 0.05, "release_delay_seconds": 1.0}
    _SOURCES[name] = (make_consumer, StreamSettings(**{**defaults, **settings}))

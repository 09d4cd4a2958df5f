"""The contract of a broker's adapter: all that it implements.

An adapter talks to its broker and nothing else. It never retries, never waits for longer than a receive does, keeps no
account of what is open, and turns its SDK's errors into clear ones. Everything else is the machine's.
``tests/conformance`` is this contract as a test suite; ``brokers/memory.py`` is it as an example.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition

Failures = Mapping[Delivery, BaseException]
"""Deliveries that could not be settled, each with why."""

NO_FAILURES: Failures = {}


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What one call may hold.

    :param receive_batch: most messages in one receive.
    :param settle_batch: most deliveries in one settle or one lease extension.
    :param lease_seconds: how long a delivery is ours; None: the broker has no lease.
    :param parallel_receives: most receives at once; more than one while they come back full.
    :param parallel_settles: most settle calls at once.
    """

    receive_batch: int
    settle_batch: int
    lease_seconds: float | None = None
    parallel_receives: int = 1
    parallel_settles: int = 4


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the broker does by itself; the machine does the rest.

    :param ordered_lanes: deliveries have lanes, and the broker delivers again from the first one released.
    :param rewinds: releasing a delivery brings everything behind it in its lane again too (Kafka, Pub/Sub keys).
    :param stragglers: after a release, deliveries from behind it may still be on their way to us (Pub/Sub keys).
    :param delayed_release: the broker itself waits for ``release_delay_seconds``; else the machine does.
    :param native_dead_letter: settling with DEAD_LETTER is durable by itself; else the machine stores a copy first.
    :param delivery_count: the broker counts deliveries; else the machine does, in memory.
    :param dead_letters_releases: the broker itself dead-letters what was released too often, without our reason
        (a Pub/Sub subscription's policy). What is rejected without a :attr:`BrokerConsumer.dead_letter_place` is
        released until it does.
    :param dead_letters_by: what gives it a place for dead letters, as the warning says that it has none.
    :param durable_handles: a delivery may be settled after a reconnect. Where not, a reconnect ends its epoch.
    """

    ordered_lanes: bool = False
    rewinds: bool = False
    stragglers: bool = False
    delayed_release: bool = True
    native_dead_letter: bool = False
    dead_letters_releases: bool = False
    delivery_count: bool = True
    durable_handles: bool = True
    dead_letters_by: str = ""


class LaneOwner(Protocol):
    """What an adapter tells the machine out of turn, and may ask it."""

    @property
    def joins(self) -> int:
        """How many watchers have joined so far. A source that left a message unmatched (:attr:`Disposition.LEAVE`)
        delivers it again when there are new ones.
        """

    @property
    def introductions(self) -> frozenset[Hashable]:
        """What the watchers that listen now say of themselves (``BrokerEventTrigger.introduction``), for a source that
        each of them may have read up to another place.
        """

    @property
    def max_in_flight(self) -> int:
        """Most messages received and not settled: what a broker that pushes may send ahead."""

    @property
    def max_in_flight_bytes(self) -> int:
        """No further receive while those messages hold more bytes than this."""

    async def settle_decided(self, lanes: frozenset[Hashable], within_seconds: float) -> None:
        """Settle what is decided on the lanes, within the time given: some of them may be about to go. They are ours
        until :meth:`lanes_revoked` says which have gone.
        """

    async def lanes_revoked(self, lanes: frozenset[Hashable], settle_within_seconds: float) -> None:
        """The lanes are about to go, or have gone, to somebody else (a rebalance, a lost session).

        What is decided is settled within the time given; 0: they are gone already. Afterwards nothing of theirs is
        settled.
        """


class BrokerConsumer(Protocol):
    """One connection to one source, used by one event loop.

    :param lane_owner: set by the machine before the first :meth:`connect`; None in a test that drives the adapter
        alone.
    """

    lane_owner: LaneOwner | None

    @property
    def source(self) -> str:
        """The kind of source, as in the payload: ``sqs``."""

    @property
    def stream(self) -> str:
        """The name of the queue, topics, directory or endpoint, as in the payload: ``orders``. No secrets."""

    @property
    def identity(self) -> str:
        """What two consumers must not take from at once in one process: the queue's URL, the group and topics."""

    @property
    def limits(self) -> BrokerLimits:
        """What one call may hold. May depend on the source: read after :meth:`connect`."""

    @property
    def capabilities(self) -> Capabilities:
        """What the broker does by itself. Only what concerns dead letters and ``delivery_count`` may change by
        :meth:`connect`.
        """

    @property
    def dead_letter_place(self) -> str | None:
        """Where dead letters go, in words; None: nowhere. Read after :meth:`connect`."""

    async def connect(self) -> None:
        """Connect, and find out whether the source can be used. May be called again after :meth:`close`.

        :raises SourceUnavailable: somebody has to change something; the text says what.
        """

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        """Return up to ``max_messages``, in order; wait a few seconds at most when there are none.

        ``max_messages`` is at most ``limits.receive_batch``. Being cancelled loses nothing that doesn't come again.
        """

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        """Tell the broker; return what failed. At most ``limits.settle_batch`` deliveries. Idempotent.

        "Already gone" is success for ACCEPT. :class:`LeaseLost` as the failure says that a delivery is no longer
        ours. Where an exception is raised, all of them failed. ACCEPT and RELEASE come to every broker, DEAD_LETTER
        only with ``native_dead_letter``, LEAVE only where ``on_unmatched`` may be ``leave``; LAPSE never comes.
        """

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        """Put a durable copy of each where dead letters go; return what failed. Not called with ``native_dead_letter``.

        The machine accepts the originals afterwards. :func:`~.dead_letter.note` is what goes with each copy.
        """

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        """Renew each lease by ``limits.lease_seconds``; return those that are lost. Not called without leases."""

    def is_transient(self, error: BaseException) -> bool:
        """Whether ``error`` may go away by itself (a time-out, a throttle, a server error, a dropped connection)."""

    async def close(self) -> None:
        """Let go of everything. Idempotent; works while a receive waits, before :meth:`connect`, and when cancelled."""

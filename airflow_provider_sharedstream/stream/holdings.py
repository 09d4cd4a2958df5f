"""What a stream has received and not let go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.assembler import Assembler
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery, runs
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.in_flight import InFlightBudget
from airflow_provider_sharedstream.stream.lanes import LaneGuard
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.redelivery import RedeliveryLedger
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.stream.settlement import Sealed, SettlementBatcher


class Holdings:
    """Keeps each delivery from its arrival until it is sealed: budget, lease and lane, together.

    :param consumer: the adapter.
    :param settings: how the stream runs.
    :param stream_metrics: counts.
    :param clock: monotonic.
    """

    def __init__(
        self,
        consumer: BrokerConsumer,
        settings: StreamSettings,
        stream_metrics: StreamMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._metrics = stream_metrics
        self._clock = clock
        capabilities = consumer.capabilities
        self.budget = InFlightBudget(settings.max_in_flight, settings.max_in_flight_bytes)
        self.assembler = Assembler(settings.batch_size, settings.batch_window_seconds, clock=clock)
        self.lanes = LaneGuard(rewinds=capabilities.rewinds, stragglers=capabilities.stragglers)
        self.leases = LeaseKeeper(consumer, settings.max_lease_seconds, stream_metrics, clock=clock)
        self.settlement = SettlementBatcher(consumer, self.leases, self.lanes, self._seal, stream_metrics, clock=clock)
        self.ledger = RedeliveryLedger()
        self.decided: set[Delivery] = set()
        """Put to the settlement, and not sealed yet."""
        self.sealed: Counter[Disposition | None] = Counter()
        """Messages by what the broker was told; None: nothing."""

    def arrived(self, deliveries: Sequence[Delivery]) -> None:
        """Take what was received: count it, put it into its lane, and let it wait for its batch."""
        now = self._clock()
        counts = self._consumer.capabilities.delivery_count
        passed: list[Delivery] = []
        early: list[Delivery] = []
        for delivery in deliveries:
            delivery.received_at = now
            if not counts:
                self.ledger.count(delivery)
        for _, run in runs(deliveries):
            if self.lanes.arrive_together(run, now):
                passed += run
                continue
            for delivery in run:
                (passed if self.lanes.arrive(delivery, now) else early).append(delivery)
        self.budget.admit(deliveries)
        self.leases.track(deliveries)
        self._metrics.count(metrics.RECEIVED, len(deliveries))
        if early and self._consumer.capabilities.rewinds:
            self._seal(Sealed(early, None, "behind a held one"))
        elif early:
            self.dispose(Disposition.RELEASE, early)
        self.assembler.add(passed)

    def still_ours(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Return those whose lease and epoch haven't ended while they waited; the others come again."""
        if self.leases.none_lost(deliveries) and self.lanes.none_void(deliveries):
            return deliveries
        if void := [delivery for delivery in deliveries if self.lanes.is_void(delivery)]:
            self._seal(Sealed(void, None, "epoch ended"))
            deliveries = [delivery for delivery in deliveries if not self.lanes.is_void(delivery)]
        if lost := [delivery for delivery in deliveries if self.leases.is_lost(delivery)]:
            for delivery in lost:
                self.lanes.hold(delivery, self._clock())
            self._seal(Sealed(lost, None, "lease lost"))
            deliveries = [delivery for delivery in deliveries if not delivery.lease_lost]
        return deliveries

    def is_undecided(self, delivery: Delivery) -> bool:
        """Return whether nobody has said yet what becomes of it."""
        return delivery in self.budget.open and delivery not in self.decided

    def dispose(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> None:
        """Decide what the broker is told of ``deliveries``; the settlement tells it."""
        # What was given up while it was with the watchers (its epoch has ended) is nobody's to decide about any more.
        in_flight, decided = self.budget.open, self.decided
        deliveries = [one for one in deliveries if one in in_flight and one not in decided]
        if disposition is Disposition.LAPSE:
            self._seal(Sealed(deliveries, None, "not heard, or no longer ours"))
            return
        self.settlement.put(disposition, deliveries)
        self.decided.update(deliveries)

    def give_back(self) -> None:
        """Release what nobody has decided about."""
        self.assembler.drain()
        undecided = [delivery for delivery in self.budget.open if delivery not in self.decided]
        if self._consumer.limits.lease_seconds is None:
            # Nothing was promised to the broker: what isn't committed comes to the next owner by itself.
            self.budget.free(undecided)
        else:
            for delivery in undecided:
                delivery.release_delay_seconds = 0.0
            self.dispose(Disposition.RELEASE, undecided)

    def end_epoch(self, lanes: frozenset[Hashable] | None) -> None:
        """Make void what has arrived on ``lanes``; None: on all."""
        self.lanes.end_epoch(lanes)
        void = self.assembler.drop(self.lanes.is_void)
        if void:
            self._seal(Sealed(void, None, "epoch ended"))
        self.settlement.drop_void()

    def _seal(self, sealed: Sealed) -> None:
        deliveries = sealed.deliveries
        self.sealed[sealed.disposition] += len(deliveries)
        settled = sealed.disposition in (Disposition.ACCEPT, Disposition.DEAD_LETTER)
        for delivery in deliveries:
            delivery.settled = settled
        self.decided.difference_update(deliveries)
        self.budget.free(deliveries)
        self.leases.forget(deliveries)
        counts = self._consumer.capabilities.delivery_count
        now = self._clock()
        for _, run in runs(deliveries):
            self.lanes.leave_together(run, now)
        # What lies behind a held one, and isn't told of, has done nothing to be counted for.
        if not counts and sealed.disposition is Disposition.RELEASE:
            for delivery in deliveries:
                self.ledger.expect(delivery)
        elif not counts and sealed.disposition is not None and self.ledger:
            for delivery in deliveries:
                self.ledger.forget(delivery)
        if sealed.disposition is None:
            self._metrics.count(metrics.LAPSED, len(deliveries), cause=sealed.cause.replace(" ", "_").replace(",", ""))

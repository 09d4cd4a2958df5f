"""Leases: renewed while a delivery is open, bounded, and given up when lost."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.calls import call, is_transient
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import error_text
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 30.0
HALF_LIFE = 0.5
JITTER = 0.1
"""Renewals are spread over a tenth of the lease, so that a thousand leases of one moment don't fall due at once."""
RETRY = 0.1
LONGEST_RETRY_SECONDS = 10.0
"""A renewal that failed is tried again after a tenth of the lease: some five times before it runs out."""

_DEADLINE = attrgetter("lease_deadline")


class LeaseKeeper:
    """Renews every open lease at half its life, in chunks, for at most ``max_lease_seconds``.

    A lease that has run out here is taken as lost even where the broker didn't say so: somebody else may hold the
    message by now, and settling it would take it from under them.

    :param consumer: the connection that renews.
    :param max_lease_seconds: from arrival; longer than Airflow's ack timeout, so that only what is stuck runs out.
    :param stream_metrics: where lost leases are counted.
    :param clock: monotonic.
    """

    def __init__(
        self,
        consumer: BrokerConsumer,
        max_lease_seconds: float,
        stream_metrics: StreamMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._max_lease_seconds = max_lease_seconds
        self._metrics = stream_metrics
        self._clock = clock
        self._renew_at: dict[Delivery, float] = {}
        self._changed = asyncio.Event()
        self._unsaid = 0
        self._said_at = float("-inf")
        self._refusal_said = False
        self.paused = False
        """Set in tests: leases run out."""

    def track(self, deliveries: Iterable[Delivery]) -> None:
        """Start to keep the leases of deliveries that have just arrived."""
        default = self._consumer.limits.lease_seconds
        for delivery in deliveries:
            lease_seconds = delivery.lease_seconds or default
            if lease_seconds is None:
                continue
            delivery.lease_seconds = lease_seconds
            self._renewed(delivery, delivery.received_at)
        self._changed.set()

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Stop keeping leases."""
        if self._renew_at:
            for delivery in deliveries:
                self._renew_at.pop(delivery, None)

    def is_lost(self, delivery: Delivery) -> bool:
        """Whether the lease of ``delivery`` is gone, by the broker's word or by the clock."""
        if not delivery.lease_lost and delivery.lease_deadline is not None and self._clock() >= delivery.lease_deadline:
            self.lose(delivery, "it ran out")
        return delivery.lease_lost

    def none_lost(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether all of these are still ours."""
        # Most brokers without leases have small records by the thousand.
        return not any(map(_DEADLINE, deliveries)) or not any(map(self.is_lost, deliveries))

    async def step(self) -> None:
        """Wait until leases fall due, and renew them."""
        if not self._renew_at or self.paused:
            self._changed.clear()
            await wait_until_set(self._changed, 0.2 if self.paused else None)
            return
        now = self._clock()
        soonest = min(self._renew_at.values())
        if soonest > now:
            self._changed.clear()
            await wait_until_set(self._changed, soonest - now)
            return
        # What falls due within the jitter comes along: fewer calls, and never later than its time.
        due = [d for d, at in self._renew_at.items() if at <= now + JITTER * (d.lease_seconds or 0.0)]
        size = self._consumer.limits.settle_batch
        chunks = [due[start : start + size] for start in range(0, len(due), size)]
        parallel = self._consumer.limits.parallel_settles
        for start in range(0, len(chunks), parallel):
            await asyncio.gather(*(self._renew(chunk) for chunk in chunks[start : start + parallel]))

    async def _renew(self, chunk: Sequence[Delivery]) -> None:
        now = self._clock()
        keep: list[Delivery] = []
        for delivery in chunk:
            if delivery not in self._renew_at or self.is_lost(delivery):
                continue
            if now - delivery.received_at > self._max_lease_seconds:
                self.lose(delivery, f"it was held for longer than max_lease_seconds={self._max_lease_seconds:g}")
            else:
                keep.append(delivery)
        if not keep:
            return
        shortest = min(delivery.lease_seconds or 0.0 for delivery in keep)
        try:
            renewal = self._consumer.extend_leases(keep)
            lost = set(await call(f"the renewal of {len(keep)} leases", renewal, seconds=max(1.0, shortest / 3)))
        except Exception as error:
            if not is_transient(self._consumer, error) and not self._refusal_said:
                self._refusal_said = True
                log.error("Leases can't be renewed, and it is tried again until they run out: %s", error_text(error))
            for delivery in keep:
                if delivery in self._renew_at:
                    wait = min(LONGEST_RETRY_SECONDS, RETRY * (delivery.lease_seconds or 0.0))
                    self._renew_at[delivery] = self._clock() + wait
            return
        self._refusal_said = False
        for delivery in keep:
            if delivery not in self._renew_at:
                # It was settled meanwhile, which the broker may take for gone.
                continue
            if delivery in lost:
                self.lose(delivery, "the broker took it back")
            else:
                delivery.lease_seconds = self._consumer.limits.lease_seconds or delivery.lease_seconds
                self._renewed(delivery, now)

    def _renewed(self, delivery: Delivery, at: float) -> None:
        lease_seconds = delivery.lease_seconds or 0.0
        delivery.lease_deadline = at + lease_seconds
        self._renew_at[delivery] = at + lease_seconds * (HALF_LIFE - JITTER * random.random())

    def lose(self, delivery: Delivery, why: str) -> None:
        """Note that a lease is gone."""
        delivery.lease_lost = True
        self._renew_at.pop(delivery, None)
        self._metrics.count(metrics.LEASES_LOST)
        self._unsaid += 1
        now = self._clock()
        if now - self._said_at >= SAY_EVERY_SECONDS:
            # Leases are lost by the hundred when a server is away for a minute.
            log.warning(
                "Leases lost: %d; the latest, of %s, since %s. What isn't settled will be delivered again.",
                self._unsaid,
                delivery.id,
                why,
            )
            self._unsaid = 0
            self._said_at = now

"""Messages that are given back after a delay, which the service has no word for: their ack deadline is the delay."""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Sequence

from airflow_provider_sharedstream.brokers.pubsub.client import PubSubClient
from airflow_provider_sharedstream.brokers.pubsub.errors import NotConnected
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import LeaseLost

LONGEST_DEADLINE_SECONDS = 600
"""Of an ack deadline (ModifyAckDeadlineRequest.ack_deadline_seconds)."""
ORDERED_DELAY = 0.4
"""Of a lease: the longest delay of a message that has an order. When it returns the service repeats what lies behind
it; a lease of those that ran out before would count as a failure of theirs, and in the end dead-letter them.
"""


class Releases:
    """Gives messages back, and knows how many of them the service still counts as ours.

    :param lease_seconds: the lease of those that are not released.
    """

    def __init__(self, lease_seconds: int) -> None:
        self._lease_seconds = lease_seconds
        self._ends: list[float] = []
        """A heap of monotonic times."""

    @property
    def waiting(self) -> int:
        """How many wait for the end of their delay."""
        now = time.monotonic()
        while self._ends and self._ends[0] <= now:
            heapq.heappop(self._ends)
        return len(self._ends)

    def forget(self) -> None:
        """Note that the service counts anew."""
        self._ends.clear()

    async def release(
        self, client: PubSubClient, path: str, deliveries: Sequence[Delivery]
    ) -> dict[Delivery, BaseException]:
        """Give back, each after its own delay; return what failed."""
        by_delay: dict[int, list[Delivery]] = {}
        for delivery in deliveries:
            by_delay.setdefault(self._delay_of(delivery), []).append(delivery)
        calls = [
            client.set_deadline(path, [delivery.handle for delivery in group], delay)
            for delay, group in by_delay.items()
        ]
        results = await asyncio.gather(*calls, return_exceptions=True)
        failures: dict[Delivery, BaseException] = {}
        now = time.monotonic()
        for (delay, group), result in zip(by_delay.items(), results, strict=True):
            if isinstance(result, BaseException):
                error = result if isinstance(result, Exception) else NotConnected("the connection was closed")
                failures.update(dict.fromkeys(group, error))
                continue
            for delivery in group:
                # A lane is held for as long as it really takes.
                delivery.release_delay_seconds = float(delay)
                failure = result.get(delivery.handle)
                if failure is None and delay:
                    heapq.heappush(self._ends, now + delay)
                # What isn't ours any more is released already.
                elif failure is not None and not isinstance(failure, LeaseLost):
                    failures[delivery] = failure
        return failures

    def _delay_of(self, delivery: Delivery) -> int:
        """Return whole seconds."""
        most = LONGEST_DEADLINE_SECONDS if delivery.lane is None else ORDERED_DELAY * self._lease_seconds
        return math.ceil(min(delivery.release_delay_seconds, most))

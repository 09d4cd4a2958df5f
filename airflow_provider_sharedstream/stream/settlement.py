"""Telling the broker, off Airflow's path.

Airflow awaits one ``advance`` at a time for a whole stream, so ``advance`` decides and puts what it decided here. Items
gather while calls run; chunks are as large as the broker takes; several run at once; a lane keeps its order.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from airflow_provider_sharedstream.stream.lanes import LaneGuard
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.005
"""Waited before a call, so that what Airflow tells in one go makes one chunk."""

LONGEST_RETRY_SECONDS = 10.0
LONGEST_REFUSED_SECONDS = 60.0


class Sealed(NamedTuple):
    """Deliveries that need nothing more from the machine."""

    deliveries: Sequence[Delivery]
    disposition: Disposition | None
    """What the broker was told; None: nothing, it will deliver them again."""
    cause: str = ""


class SettlementBatcher:
    """Settles deliveries in chunks until the broker has taken each, or its lease is lost.

    :param consumer: the connection that settles.
    :param leases: knows which deliveries are no longer ours.
    :param lanes: holds a lane whose delivery could not be settled.
    :param sealed: told of every delivery put here, once.
    :param stream_metrics: counts.
    :param clock: monotonic.
    """

    def __init__(
        self,
        consumer: BrokerConsumer,
        leases: LeaseKeeper,
        lanes: LaneGuard,
        sealed: Callable[[Sealed], None],
        stream_metrics: StreamMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._leases = leases
        self._lanes = lanes
        self._sealed = sealed
        self._metrics = stream_metrics
        self._clock = clock
        self._ready: dict[Disposition, deque[Delivery]] = {}
        self._later: list[tuple[float, int, Disposition, Delivery]] = []
        self._order = itertools.count()
        self._backoffs: dict[Delivery, Backoff] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._busy_lanes: set[Hashable] = set()
        self._changed = asyncio.Event()
        self._retry_said = False
        self._refusal: BaseException | None = None

    def put(self, disposition: Disposition, deliveries: Iterable[Delivery]) -> None:
        """Take over deliveries to be told ``disposition``, in lane order."""
        if disposition is Disposition.RELEASE and not self._consumer.capabilities.delayed_release:
            now = self._clock()
            for delivery in deliveries:
                self._put_later(now + delivery.release_delay_seconds, disposition, delivery)
        else:
            self._ready.setdefault(disposition, deque()).extend(deliveries)
        self._changed.set()

    @property
    def refusal(self) -> BaseException | None:
        """Why the broker refuses settlements until somebody changes something; None once it works or nothing is
        left.
        """
        return self._refusal if self._backoffs else None

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a call and none runs; what waits for its time doesn't count."""
        return not self._calls and not any(self._ready.values())

    async def step(self) -> None:
        """Wait for work, and start the calls that may run now."""
        self._changed.clear()
        wait = self._take_due()
        parallel = self._consumer.limits.parallel_settles
        if any(self._ready.values()) and len(self._calls) < parallel:
            await asyncio.sleep(LINGER_SECONDS)
            while len(self._calls) < parallel and (chunk := self._next_chunk()):
                self._start(*chunk)
        await wait_until_set(self._changed, wait)

    async def flush(self, deadline_seconds: float) -> None:
        """Wait until nothing is left to tell, or the deadline; releases that wait for their time go now."""
        for _, _, disposition, delivery in self._later:
            if disposition is Disposition.RELEASE:
                delivery.release_delay_seconds = 0.0
            self._ready.setdefault(disposition, deque()).append(delivery)
        self._later.clear()
        self._changed.set()
        deadline = self._clock() + deadline_seconds
        while not (self.idle and not self._later) and self._clock() < deadline:
            self._changed.set()
            await asyncio.sleep(0.01)

    async def stop(self) -> None:
        """Abandon the calls that still run."""
        calls = list(self._calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _take_due(self) -> float | None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            _, _, disposition, delivery = heapq.heappop(self._later)
            self._ready.setdefault(disposition, deque()).append(delivery)
        return max(0.0, self._later[0][0] - now) if self._later else None

    def _put_later(self, at: float, disposition: Disposition, delivery: Delivery) -> None:
        heapq.heappush(self._later, (at, next(self._order), disposition, delivery))

    def _next_chunk(self) -> tuple[Disposition, list[Delivery]] | None:
        for disposition, waiting in self._ready.items():
            chunk: list[Delivery] = []
            passed_over: list[Delivery] = []
            while waiting and len(chunk) < self._consumer.limits.settle_batch:
                delivery = waiting.popleft()
                if self._leases.is_lost(delivery):
                    self._seal([delivery], None, "lease lost")
                elif self._lanes.is_void(delivery):
                    self._seal([delivery], None, "epoch ended")
                elif delivery.lane is not None and delivery.lane in self._busy_lanes:
                    passed_over.append(delivery)
                else:
                    chunk.append(delivery)
            waiting.extendleft(reversed(passed_over))
            if chunk:
                return disposition, chunk
        return None

    def _start(self, disposition: Disposition, chunk: list[Delivery]) -> None:
        lanes = {delivery.lane for delivery in chunk if delivery.lane is not None}
        self._busy_lanes |= lanes
        call = asyncio.create_task(self._call(disposition, chunk, lanes), name=f"settle-{disposition.value}")
        self._calls.add(call)
        call.add_done_callback(self._ended)

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._changed.set()
        if not call.cancelled() and (error := call.exception()) is not None:
            log.error("A settlement call broke", exc_info=error)

    async def _call(self, disposition: Disposition, chunk: list[Delivery], lanes: set[Hashable]) -> None:
        try:
            failures = await self._tell(disposition, chunk)
        finally:
            self._busy_lanes -= lanes
        settled = [delivery for delivery in chunk if delivery not in failures] if failures else chunk
        if settled:
            self._refusal = None
            self._retry_said = False
            self._metrics.count(metrics.SETTLED, len(settled), disposition=disposition.value)
            self._seal(settled, disposition)
        for delivery, error in failures.items():
            self._failed(disposition, delivery, error)

    async def _tell(self, disposition: Disposition, chunk: list[Delivery]) -> dict[Delivery, BaseException]:
        """Make the broker calls; return what failed."""
        failures: dict[Delivery, BaseException] = {}
        try:
            if disposition is Disposition.DEAD_LETTER and not self._consumer.capabilities.native_dead_letter:
                # The copy must be durable before the original goes. A copy that is there already isn't made twice.
                if copies := [delivery for delivery in chunk if not delivery.parked]:
                    failures.update(await self._consumer.store_dead_letters(copies))
                    for delivery in copies:
                        delivery.parked = delivery not in failures
                chunk = [delivery for delivery in chunk if delivery.parked]
                disposition = Disposition.ACCEPT
            if chunk:
                failures.update(await self._consumer.settle(disposition, chunk))
        except Exception as error:
            failures.update((delivery, error) for delivery in chunk if delivery not in failures)
        return failures

    def _failed(self, disposition: Disposition, delivery: Delivery, error: BaseException) -> None:
        if isinstance(error, LeaseLost):
            delivery.lease_lost = True
            self._metrics.count(metrics.LEASES_LOST)
            self._seal([delivery], None, "lease lost")
            return
        self._metrics.count(metrics.SETTLE_RETRIES)
        transient = self._consumer.is_transient(error)
        if not transient:
            if self.refusal is None:
                log.error(
                    "%s of %s was refused and is tried again slowly; no further message is taken until it works: %s",
                    disposition.value,
                    delivery.id,
                    error,
                )
            self._refusal = error
        elif not self._retry_said:
            # Once per spell of trouble, not once per message.
            self._retry_said = True
            log.warning("%s of %s failed and is tried again: %s", disposition.value, delivery.id, error)
        if (backoff := self._backoffs.get(delivery)) is None:
            first, longest = (0.2, LONGEST_RETRY_SECONDS) if transient else (5.0, LONGEST_REFUSED_SECONDS)
            backoff = self._backoffs[delivery] = Backoff(first, longest)
        self._put_later(self._clock() + backoff.next_seconds(), disposition, delivery)
        self._changed.set()

    def _seal(self, deliveries: Sequence[Delivery], disposition: Disposition | None, cause: str = "") -> None:
        for delivery in deliveries:
            self._backoffs.pop(delivery, None)
            if disposition is None:
                self._lanes.hold(delivery, self._clock())
        self._sealed(Sealed(deliveries, disposition, cause))

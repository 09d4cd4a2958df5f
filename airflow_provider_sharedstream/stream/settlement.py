"""Telling the broker, off Airflow's path.

Airflow awaits one ``advance`` at a time for a whole stream, so ``advance`` decides and puts what it decided here. Items
gather while calls run; chunks are as large as the broker takes; several run at once; a lane keeps its order.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.calls import call, is_transient
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery, runs
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from airflow_provider_sharedstream.stream.lanes import LaneGuard
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Spell
from airflow_provider_sharedstream.stream.settlement_queue import SettlementQueue
from airflow_provider_sharedstream.stream.settlement_retries import SettlementRetries, backoff
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

LINGER_SECONDS = 0.005
"""Waited before a call, so that what Airflow tells in one go makes one chunk."""


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
        self._queue = SettlementQueue()
        self._retries = SettlementRetries(clock)
        self._spells: dict[Disposition, Spell] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def put(self, disposition: Disposition, deliveries: Iterable[Delivery]) -> None:
        """Take over deliveries to be told ``disposition``, in lane order."""
        waits_here = disposition is Disposition.RELEASE and not self._consumer.capabilities.delayed_release
        now = self._clock()
        for lane, run in runs(deliveries):
            if lane is not None and not waits_here:
                self._queue.put(disposition, run)
                continue
            for delivery in run:
                self._queue.put(disposition, [delivery], now + delivery.release_delay_seconds if waits_here else 0.0)
        self._changed.set()

    @property
    def refusal(self) -> BaseException | None:
        """Why the broker refuses to settle something until somebody changes something; None when nothing of the kind
        is left.
        """
        return self._retries.refusal

    async def retry_refused(self, deadline_seconds: float = 10.0) -> BaseException | None:
        """Try what was refused once more, now; return why it is refused still, or None."""
        if self.refusal is None:
            return None
        before = self._retries.refusals
        self._hasten(self._retries.is_refused)
        deadline = self._clock() + deadline_seconds
        while self.refusal is not None and self._retries.refusals == before and self._clock() < deadline:
            await asyncio.sleep(0.02)
        return self.refusal

    async def step(self) -> None:
        """Wait for work, and start the calls that may run now."""
        self._changed.clear()
        parallel = self._consumer.limits.parallel_settles
        if self._queue.may_tell(self._clock(), self._held()) and len(self._calls) < parallel:
            await asyncio.sleep(LINGER_SECONDS)
            while len(self._calls) < parallel and (chunk := self._next_chunk()):
                self._start(*chunk)
        now = self._clock()
        times = [spell.until for spell in self._spells.values() if now < spell.until]
        if (next_at := self._queue.next_at()) is not None:
            times.append(next_at)
        await wait_until_set(self._changed, max(0.0, min(times) - now) if times else None)

    async def flush(self, deadline_seconds: float, lanes: frozenset[Hashable] | None = None) -> None:
        """Wait until nothing is left to tell, or the deadline; what waits for its time goes now.

        :param lanes: only what is of these; None: everything.
        """
        for delivery in self._hasten(lambda one: lanes is None or one.lane in lanes):
            delivery.release_delay_seconds = 0.0
        deadline = self._clock() + deadline_seconds
        while self._is_open(lanes) and self._clock() < deadline:
            await asyncio.sleep(0.01)

    def drop_void(self) -> None:
        """Let go of deliveries whose epoch has ended, without waiting until their time has come."""
        if void := self._queue.take(self._lanes.is_void):
            self._seal(void, None, "epoch ended")

    async def stop(self) -> None:
        """Abandon the calls that still run. Nothing may be put, and no step taken, any more."""
        calls = list(self._calls)
        for one in calls:
            one.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    def _hasten(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        for spell in self._spells.values():
            spell.until = 0.0
        self._changed.set()
        return self._queue.hasten(which)

    def _held(self) -> set[Disposition]:
        now = self._clock()
        return {disposition for disposition, spell in self._spells.items() if spell.holds(now)}

    def _is_open(self, lanes: frozenset[Hashable] | None) -> bool:
        if lanes is None:
            return bool(self._calls or self._queue)
        return any(self._queue.has(lane) for lane in lanes)

    def _next_chunk(self) -> tuple[Disposition, list[Delivery]] | None:
        """Take out the next chunk, without what is no longer ours by now."""
        while found := self._queue.next_chunk(self._consumer.limits.settle_batch, self._clock(), self._held()):
            disposition, waiting = found
            if chunk := self._still_ours(waiting):
                return disposition, chunk
        return None

    def _still_ours(self, waiting: list[Delivery]) -> list[Delivery]:
        if self._leases.none_lost(waiting) and all(self._lanes.none_void(run) for _, run in runs(waiting)):
            return waiting
        ours: list[Delivery] = []
        behind: dict[Hashable, list[Delivery]] = {}
        for delivery in waiting:
            if self._lanes.is_void(delivery):
                self._seal([delivery], None, "epoch ended")
            elif delivery.lane in behind:
                self._step_back(delivery)
            elif not self._leases.is_lost(delivery):
                ours.append(delivery)
            else:
                self._seal([delivery], None, "lease lost")
                if delivery.lane is not None:
                    behind[delivery.lane] = self._queue.take_behind(delivery)
        for line in behind.values():
            for delivery in line:
                self._step_back(delivery)
        if len(ours) < len(waiting):
            # A line that goes on being told of stays busy.
            told = {delivery.lane for delivery in ours if delivery.lane is not None}
            kept = set(ours)
            self._queue.ended([one for one in waiting if one not in kept and one.lane not in told])
        return ours

    def _start(self, disposition: Disposition, chunk: list[Delivery]) -> None:
        if (spell := self._spells.get(disposition)) is not None:
            spell.trying = True
        one = asyncio.create_task(self._call(disposition, chunk), name=f"settle-{disposition.value}")
        self._calls.add(one)
        one.add_done_callback(self._ended)

    def _ended(self, one: asyncio.Task[None]) -> None:
        self._calls.discard(one)
        self._changed.set()
        if not one.cancelled() and (error := one.exception()) is not None:
            log.error("A settlement call broke", exc_info=error)

    async def _call(self, disposition: Disposition, chunk: list[Delivery]) -> None:
        failures: dict[Delivery, BaseException] = {}
        try:
            await self._tell(disposition, chunk, failures)
        except Exception as error:
            # As a whole: the same would become of the next call.
            self._trouble(disposition, error)
            failures.update((delivery, error) for delivery in chunk if delivery not in failures)
        else:
            self._spells.pop(disposition, None)
        try:
            self._conclude(disposition, chunk, failures)
        finally:
            self._queue.ended(chunk)

    async def _tell(
        self, disposition: Disposition, chunk: Sequence[Delivery], failures: dict[Delivery, BaseException]
    ) -> None:
        """Make the broker calls; note what failed."""
        consumer, what = self._consumer, f"{disposition.value} of {len(chunk)} messages"
        if disposition is Disposition.DEAD_LETTER and not consumer.capabilities.native_dead_letter:
            # The copy must be durable before the original goes. A copy that is there already isn't made twice.
            if copies := [delivery for delivery in chunk if not delivery.parked]:
                failures.update(await call(what, consumer.store_dead_letters(copies), seconds=None))
                for delivery in copies:
                    delivery.parked = delivery not in failures
            _fail_what_lies_behind(failures, chunk)
            chunk = [delivery for delivery in chunk if delivery not in failures]
            disposition = Disposition.ACCEPT
        if chunk:
            failures.update(await call(what, consumer.settle(disposition, chunk), seconds=None))

    def _trouble(self, disposition: Disposition, error: BaseException) -> None:
        spell = self._spells.get(disposition)
        if spell is None:
            spell = self._spells[disposition] = Spell(backoff(transient=is_transient(self._consumer, error)))
        spell.failed(self._clock())

    def _conclude(
        self, disposition: Disposition, chunk: Sequence[Delivery], failures: Mapping[Delivery, BaseException]
    ) -> None:
        settled = [delivery for delivery in chunk if delivery not in failures] if failures else chunk
        if settled:
            self._metrics.count(metrics.SETTLED, len(settled), disposition=disposition.value)
            self._seal(settled, disposition)
        # The last one first, since each is put back at the front of its line.
        for delivery in reversed(chunk):
            if delivery not in failures:
                continue
            error = failures[delivery]
            if isinstance(error, LeaseLost):
                self._leases.lose(delivery, str(error))
                # Where its epoch has ended meanwhile, what lies behind may be of the next one, and is still ours.
                holds = delivery.lane is not None and not self._lanes.is_void(delivery)
                self._seal([delivery], None, "lease lost")
                if holds:
                    for behind in self._queue.take_behind(delivery):
                        self._step_back(behind)
            else:
                self._again(disposition, delivery, error)

    def _again(self, disposition: Disposition, delivery: Delivery, error: BaseException) -> None:
        self._metrics.count(metrics.SETTLE_RETRIES)
        transient = is_transient(self._consumer, error)
        self._retries.note(f"{disposition.value} of {delivery.id}", delivery, error, transient=transient)
        # Where the calls are spaced out as a whole, a delivery isn't by itself.
        spaced = disposition in self._spells
        wait = 0.0 if spaced else self._retries.wait_seconds(delivery, transient=transient)
        self._queue.put_back(disposition, delivery, self._clock() + wait)

    def _step_back(self, delivery: Delivery) -> None:
        """Don't settle a delivery whose lane is held before it."""
        if self._consumer.capabilities.rewinds:
            self._seal([delivery], None, "behind a held one")
        else:
            delivery.release_delay_seconds = 0.0
            self._queue.put(Disposition.RELEASE, [delivery], self._clock())

    def _seal(self, deliveries: Sequence[Delivery], disposition: Disposition | None, cause: str = "") -> None:
        self._retries.forget(deliveries)
        for delivery in deliveries if disposition is None else ():
            self._lanes.hold(delivery, self._clock())
        self._sealed(Sealed(deliveries, disposition, cause))


def _fail_what_lies_behind(failures: dict[Delivery, BaseException], chunk: Sequence[Delivery]) -> None:
    """Note as failed what lies in a lane behind a failure: to accept it might accept the one before it too."""
    stuck: dict[Hashable, BaseException] = {}
    for delivery in chunk:
        if (error := failures.get(delivery)) is not None:
            stuck.setdefault(delivery.lane, error)
        elif delivery.lane is not None and (error := stuck.get(delivery.lane)) is not None:
            failures[delivery] = error

"""The machine, wired: the one place that knows Airflow's producer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
from typing_extensions import Self

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.attendance import Attendance
from airflow_provider_sharedstream.stream.calls import call
from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Batch
from airflow_provider_sharedstream.stream.disposition import Outcome
from airflow_provider_sharedstream.stream.errors import error_text
from airflow_provider_sharedstream.stream.holdings import Holdings
from airflow_provider_sharedstream.stream.intake import Intake
from airflow_provider_sharedstream.stream.judge import Judge
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Backoff, never_ending
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.stream.window import BatchWindow

log = logging.getLogger(__name__)

ATTENDANCE_SECONDS = 3.0
"""How long a stream that ends waits for the next roster, which comes once a second."""
WAITING_WINDOWS = 2
"""How many times what is with the watchers may wait behind it."""

_closing: set[asyncio.Task[None]] = set()
"""Streams that are being closed: nobody else may hold on to them any more."""


class BrokerStreamProducer(SharedStreamProducer):
    """Receives from one broker for all watchers of one stream, and settles what they decided.

    Subclasses bind a broker's consumer to an importable name (``consumer_class``); they never change how this works.

    :param consumer: the adapter.
    :param settings: how the stream runs.
    :param cohort: who must be listening; None: nobody has to.
    :param description: the stream's arguments as JSON, for the message about two streams on one source.
    """

    consumer_class: ClassVar[Callable[..., BrokerConsumer]]

    @classmethod
    def from_arguments(
        cls, arguments: Mapping[str, Any], settings: StreamSettings, *, cohort: Cohort | None, description: str
    ) -> Self:
        """Build the producer of a trigger's stream.

        :param arguments: what names and reaches the source, by the names of the consumer's constructor.
        """
        return cls(cls.consumer_class(**arguments), settings, cohort=cohort, description=description)

    def __init__(
        self,
        consumer: BrokerConsumer,
        settings: StreamSettings | None = None,
        *,
        cohort: Cohort | None = None,
        description: str = "a stream",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = settings or StreamSettings()
        self.consumer = consumer
        self.settings = settings
        self._clock = clock
        self._cohort = cohort
        self._connects = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._intake_task: asyncio.Task[None] | None = None
        self._intake_stopped = False
        self._closing: asyncio.Task[None] | None = None
        self._unheard = Backoff(1.0, 60.0)
        self.metrics = StreamMetrics(consumer.source, consumer.stream)
        name = f"{consumer.source} {consumer.stream}"
        self.holdings = Holdings(consumer, settings, self.metrics, clock=clock)
        self.window = BatchWindow(
            settings.max_batches,
            settings.confirm_target_seconds,
            watchers=lambda: 0 if cohort is None else len(cohort),
            clock=clock,
        )
        self.judge = Judge(consumer, settings, self.holdings, cohort, self.metrics, clock=clock)
        self.attendance = Attendance(cohort, self.judge.decide, clock=clock)
        if cohort is not None:
            cohort.serve(settings.cohort_timeout_seconds, self.metrics, name)
        if cohort is None:
            self._claim = SourceClaim(name, lambda: description)
        else:
            self._claim = SourceClaim(name, lambda: description, cohort.roll_call.stream, cohort.roll_call.why_hold)
        self.intake = Intake(
            consumer,
            self.holdings.budget,
            settings,
            cohort=cohort,
            claim=self._claim,
            connected=self._connected,
            arrived=self.holdings.arrived,
            # More would wait here until its lease has run out, and be shown to the watchers for nothing.
            crowded=lambda: self.holdings.assembler.waiting > WAITING_WINDOWS * self.window.size,
            refusal=self.holdings.settlement.retry_refused,
            stream_metrics=self.metrics,
        )
        consumer.lane_owner = self

    # Airflow calls these four.

    async def open_stream(self) -> AsyncIterator[tuple[Any, Any]]:
        """Yield batches for ever. It ends by being closed, not by raising: trouble is waited out inside."""
        self._start()
        try:
            while True:
                await self.window.place()
                deliveries = await self.holdings.assembler.next()
                if self._cohort is not None and not self._cohort.complete:
                    # They came with a receive that was under way when somebody left.
                    await self._cohort.ready(self.settings.join_grace_seconds)
                await self._claim.undisputed()
                deliveries = self.holdings.still_ours(deliveries)
                self.intake.look()
                if not deliveries:
                    continue
                batch = Batch(
                    deliveries,
                    source=self.consumer.source,
                    stream=self.consumer.stream,
                    offered_at=self._clock(),
                    excused=frozenset() if self._cohort is None else self._cohort.roll_call.excused,
                )
                self.window.offer(batch)
                self.metrics.count(metrics.OFFERED)
                yield batch, batch
        finally:
            # Airflow calls advance for what is resolved, then aclose; no further message is taken meanwhile.
            self._stop_intake()

    def get_advance_lane(self, broker_payload: Batch) -> Hashable:
        """Return the batch's lane: its own where the broker has no order."""
        return broker_payload.lane

    async def advance(self, batch: Sequence[AdvanceItem]) -> None:
        """Decide what the broker is told, and leave the telling to the batcher. Never raises."""
        for item in batch:
            # To raise would fail every watcher of the stream for a mistake of ours.
            try:
                outcome = Outcome(item.outcome.acked, item.outcome.failed, item.outcome.rejected)
                self._conclude(item.broker_payload, outcome)
            except Exception:
                log.exception("A batch could not be judged; its messages are released")
                with suppress(Exception):
                    self.judge.release(item.broker_payload)
                with suppress(Exception):
                    self.window.conclude(item.broker_payload, seconds=0.0)

    async def aclose(self) -> None:
        """Stop receiving, tell the broker what is decided, give back what isn't, let go. Idempotent.

        It goes on by itself when whoever waits for it is cancelled, as happens when a triggerer stops: what it leaves
        undone would keep the next stream of the source from starting.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="sharedstream-close")
            _closing.add(self._closing)
            self._closing.add_done_callback(_closing.discard)
        await asyncio.wait((self._closing,))

    async def _close(self) -> None:
        deadline = self.settings.close_deadline_seconds
        loops = self._tasks
        try:
            await asyncio.gather(*self._stop_intake(), return_exceptions=True)
            await self.attendance.finish(min(ATTENDANCE_SECONDS, deadline))
            self.holdings.give_back()
            if loops:
                await self.holdings.settlement.flush(deadline)
            await _cancel(loops)
            await self.holdings.settlement.stop()
        except Exception:
            log.exception("Closing %s %s did not tell the broker all", self.consumer.source, self.consumer.stream)
        finally:
            for loop in loops:
                loop.cancel()
            try:
                await call("close", self.consumer.close(), seconds=deadline)
            except Exception as error:
                log.warning("Closing %s %s: %s", self.consumer.source, self.consumer.stream, error_text(error))
            finally:
                self._claim.drop()
                self.metrics.gauge(metrics.UP, 0)

    def _stop_intake(self) -> list[asyncio.Task[None]]:
        """Cancel the intake, once: what a receive returns at that moment would be lost to a second time."""
        if self._intake_task is None:
            return []
        if not self._intake_stopped:
            self._intake_stopped = True
            self._intake_task.cancel()
        return [self._intake_task]

    # The adapter calls these.

    @property
    def joins(self) -> int:
        """How many watchers have joined so far."""
        return 0 if self._cohort is None else self._cohort.changes

    @property
    def introductions(self) -> frozenset[Hashable]:
        """What the watchers that listen now say of themselves."""
        return frozenset() if self._cohort is None else self._cohort.introductions

    @property
    def max_in_flight(self) -> int:
        """Most messages received and not settled."""
        return self.settings.max_in_flight

    @property
    def max_in_flight_bytes(self) -> int:
        """No further receive while those messages hold more bytes than this."""
        return self.settings.max_in_flight_bytes

    async def settle_decided(self, lanes: frozenset[Hashable], within_seconds: float) -> None:
        """Settle what is decided on ``lanes``, as far as there is time."""
        await self.attendance.finish(min(ATTENDANCE_SECONDS, within_seconds / 2))
        await self.holdings.settlement.flush(within_seconds, lanes)

    async def lanes_revoked(self, lanes: frozenset[Hashable], settle_within_seconds: float) -> None:
        """Settle what is decided, then make void what has arrived on ``lanes``."""
        if settle_within_seconds > 0:
            await self.settle_decided(lanes, settle_within_seconds)
        self.holdings.end_epoch(lanes)

    # The rest is the machine's.

    def _start(self) -> None:
        def run(name: str, step: Callable[[], Any]) -> asyncio.Task[None]:
            return asyncio.create_task(never_ending(name, step), name=f"sharedstream-{name}")

        self._tasks = [
            run("settlement", self.holdings.settlement.step),
            run("lease", self.holdings.leases.step),
            run("attendance", self.attendance.step),
        ]
        self._intake_task = run("intake", self.intake.step)

    def _connected(self) -> None:
        self._connects += 1
        if self._connects > 1:
            # What follows a failure may turn out to be impossible to settle: begin with one batch.
            self.window.probe()
            if not self.consumer.capabilities.durable_handles:
                self.holdings.end_epoch(None)
        self.judge.connected(first=self._connects == 1)

    def _conclude(self, batch: Batch, outcome: Outcome) -> None:
        now = self._clock()
        for receipt in batch.receipts:
            receipt.concluded = True
        returned_at = max((r.returned_at for r in batch.receipts if r.returned_at is not None), default=now)
        confirm_seconds = now - returned_at
        # A batch that takes a third of what Airflow allows is too much at once, whoever is slow.
        late = now - batch.offered_at > self.settings.ack_timeout_seconds / 3
        seconds = self.settings.ack_timeout_seconds if late else confirm_seconds
        self.window.conclude(batch, seconds=seconds)
        self.metrics.timing(metrics.CONFIRM, confirm_seconds)
        self.metrics.gauge(metrics.WINDOW, self.window.size)
        self.metrics.gauge(metrics.IN_FLIGHT, len(self.holdings.budget))
        self.metrics.gauge(metrics.IN_FLIGHT_BYTES, self.holdings.budget.bytes)
        if any(outcome):
            self._unheard.reset()
        elif not self.intake.paused:
            # Nobody listens although somebody is subscribed (all have failed): don't empty the queue meanwhile.
            self.intake.pause(self._unheard.next_seconds())
        self.attendance.put(batch, outcome)


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

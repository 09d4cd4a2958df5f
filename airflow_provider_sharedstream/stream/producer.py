"""The machine, wired: the one place that knows Airflow's producer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from airflow.triggers.shared_stream import AdvanceItem, SharedStreamProducer
from typing_extensions import Self

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.assembler import Assembler
from airflow_provider_sharedstream.stream.attendance import Attendance, attended, unheard
from airflow_provider_sharedstream.stream.calls import call
from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery, runs
from airflow_provider_sharedstream.stream.disposition import Disposition, DispositionPolicy, Outcome, Verdict
from airflow_provider_sharedstream.stream.in_flight import InFlightBudget
from airflow_provider_sharedstream.stream.intake import Intake
from airflow_provider_sharedstream.stream.lanes import PASSES, LaneGuard
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Backoff, never_ending
from airflow_provider_sharedstream.stream.redelivery import RedeliveryLedger
from airflow_provider_sharedstream.stream.roster import StreamRoster
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.stream.settlement import Sealed, SettlementBatcher
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
        capabilities = consumer.capabilities
        self.consumer = consumer
        self.settings = settings
        self._clock = clock
        self._cohort = cohort
        self._connects = 0
        self._tasks: list[asyncio.Task[None]] = []
        self._intake_task: asyncio.Task[None] | None = None
        self._intake_stopped = False
        self._closing: asyncio.Task[None] | None = None
        self._decided: set[Delivery] = set()
        self._unheard = Backoff(1.0, 60.0)
        self._policy = DispositionPolicy()
        self.metrics = StreamMetrics(consumer.source, consumer.stream)
        self.budget = InFlightBudget(settings.max_in_flight, settings.max_in_flight_bytes)
        self.window = BatchWindow(
            settings.max_batches,
            settings.confirm_target_seconds,
            watchers=lambda: 0 if cohort is None else len(cohort),
            clock=clock,
        )
        self.assembler = Assembler(settings.batch_size, settings.batch_window_seconds, clock=clock)
        self.lanes = LaneGuard(rewinds=capabilities.rewinds, stragglers=capabilities.stragglers)
        self.leases = LeaseKeeper(consumer, settings.max_lease_seconds, self.metrics, clock=clock)
        self.settlement = SettlementBatcher(consumer, self.leases, self.lanes, self._seal, self.metrics, clock=clock)
        self.ledger = RedeliveryLedger()
        self.sealed: Counter[Disposition | None] = Counter()
        """Messages by what the broker was told; None: nothing."""
        self.attendance = Attendance(cohort, self._decide, clock=clock)
        if cohort is not None:
            cohort.serve(settings.cohort_timeout_seconds, self.metrics)
        self._claim = SourceClaim(lambda: description)
        self.intake = Intake(
            consumer,
            self.budget,
            settings,
            cohort=cohort,
            claim=self._claim,
            connected=self._connected,
            arrived=self._arrived,
            # More would wait here until its lease has run out, and be shown to the watchers for nothing.
            crowded=lambda: self.assembler.waiting > WAITING_WINDOWS * self.window.size,
            refusal=self.settlement.retry_refused,
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
                deliveries = await self.assembler.next()
                if self._cohort is not None and not self._cohort.complete:
                    # They came with a receive that was under way when somebody left.
                    await self._cohort.ready(self.settings.join_grace_seconds)
                await self._claim.undisputed()
                deliveries = self._still_ours(deliveries)
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
                    self._release(item.broker_payload)

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
            self._give_back()
            if loops:
                await self.settlement.flush(deadline)
            await _cancel(loops)
            await self.settlement.stop()
        except Exception:
            log.exception("Closing %s %s did not tell the broker all", self.consumer.source, self.consumer.stream)
        finally:
            for loop in loops:
                loop.cancel()
            try:
                await call("close", self.consumer.close(), seconds=deadline)
            except Exception as error:
                log.warning("Closing %s %s: %s", self.consumer.source, self.consumer.stream, error)
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

    def _give_back(self) -> None:
        """Release what nobody has decided about."""
        self.assembler.drain()
        undecided = [delivery for delivery in self.budget.open if delivery not in self._decided]
        if self.consumer.limits.lease_seconds is None:
            # Nothing was promised to the broker: what isn't committed comes to the next owner by itself.
            self.budget.free(undecided)
        else:
            for delivery in undecided:
                delivery.release_delay_seconds = 0.0
            self._dispose(Disposition.RELEASE, undecided)

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
        await self.settlement.flush(within_seconds, lanes)

    async def lanes_revoked(self, lanes: frozenset[Hashable], settle_within_seconds: float) -> None:
        """Settle what is decided, then make void what has arrived on ``lanes``."""
        if settle_within_seconds > 0:
            await self.settle_decided(lanes, settle_within_seconds)
        self._end_epoch(lanes)

    # The rest is the machine's.

    def _start(self) -> None:
        def run(name: str, step: Callable[[], Any]) -> asyncio.Task[None]:
            return asyncio.create_task(never_ending(name, step), name=f"sharedstream-{name}")

        self._tasks = [
            run("settlement", self.settlement.step),
            run("lease", self.leases.step),
            run("attendance", self.attendance.step),
        ]
        self._intake_task = run("intake", self.intake.step)

    def _connected(self) -> None:
        self._connects += 1
        if self._connects > 1:
            # What follows a failure may turn out to be impossible to settle: begin with one batch.
            self.window.probe()
            if not self.consumer.capabilities.durable_handles:
                self._end_epoch(None)
        settings, place = self.settings, self.consumer.dead_letter_place
        self._policy = DispositionPolicy(
            on_reject=settings.on_reject,
            reject_quorum=settings.reject_quorum,
            on_unmatched=settings.on_unmatched,
            max_deliveries=settings.max_deliveries,
            release_delay_seconds=settings.release_delay_seconds,
            max_release_delay_seconds=settings.max_release_delay_seconds,
            can_dead_letter=place is not None,
        )
        wanted = "dead_letter" in (settings.on_reject, settings.on_unmatched)
        released_for_ever = place is None and not self.consumer.capabilities.dead_letters_releases
        if self._connects == 1 and wanted and released_for_ever:
            log.warning(
                "%s %s has no place for dead letters: a rejected message is released with a growing delay, for ever. "
                "Give it one (dead_letter_queue, dead_letter_topic, rejected_directory, or the broker's own policy), "
                "or set on_reject='accept'.",
                self.consumer.source,
                self.consumer.stream,
            )

    def _end_epoch(self, lanes: frozenset[Hashable] | None) -> None:
        self.lanes.end_epoch(lanes)
        void = self.assembler.drop(self.lanes.is_void)
        if void:
            self._seal(Sealed(void, None, "epoch ended"))
        self.settlement.drop_void()

    def _arrived(self, deliveries: Sequence[Delivery]) -> None:
        now = self._clock()
        counts = self.consumer.capabilities.delivery_count
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
        self.metrics.count(metrics.RECEIVED, len(deliveries))
        if early and self.consumer.capabilities.rewinds:
            self._seal(Sealed(early, None, "behind a held one"))
        elif early:
            self._dispose(Disposition.RELEASE, early)
        self.assembler.add(passed)

    def _still_ours(self, deliveries: list[Delivery]) -> list[Delivery]:
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
        self.metrics.gauge(metrics.IN_FLIGHT, len(self.budget))
        self.metrics.gauge(metrics.IN_FLIGHT_BYTES, self.budget.bytes)
        if any(outcome):
            self._unheard.reset()
        elif not self.intake.paused:
            # Nobody listens although somebody is subscribed (all have failed): don't empty the queue meanwhile.
            self.intake.pause(self._unheard.next_seconds())
        self.attendance.put(batch, outcome)

    def _decide(self, batch: Batch, outcome: Outcome, stream: StreamRoster | None) -> None:
        """Decide what the broker is told about a batch. Never raises."""
        try:
            self._judge(batch, outcome, stream)
        except Exception:
            log.exception("A batch could not be judged; its messages are released")
            with suppress(Exception):
                self._release(batch)

    def _judge(self, batch: Batch, outcome: Outcome, stream: StreamRoster | None) -> None:
        verdicts = self._policy.judge(batch, outcome)
        if stream is not None and self._cohort is not None:
            for number in unheard(batch, stream):
                self._cohort.unheard(number, batch.offered_at)
            verdicts, released = attended(batch, verdicts, stream, self._policy.release)
            self.metrics.count(metrics.UNATTENDED, released)
        if self.consumer.limits.lease_seconds is None:
            verdicts = [self._spell_out(verdict) for verdict in verdicts]
        if batch.deliveries[0].lane is not None:
            verdicts = self._in_lane_order(batch.deliveries, verdicts, self._clock())
        for disposition, deliveries in verdicts:
            self._dispose(disposition, deliveries)

    def _release(self, batch: Batch) -> None:
        """Release what of a batch isn't decided."""
        self.window.conclude(batch, seconds=0.0)
        deliveries = [delivery for delivery in batch.deliveries if self._is_undecided(delivery)]
        for delivery in deliveries:
            self._policy.release(delivery)
        verdicts = [Verdict(Disposition.RELEASE, deliveries)]
        if deliveries and deliveries[0].lane is not None:
            verdicts = self._in_lane_order(deliveries, verdicts, self._clock())
        for disposition, some in verdicts:
            self._dispose(disposition, some)

    def _spell_out(self, verdict: Verdict) -> Verdict:
        """Without a lease nothing lapses by itself: say that it shall come again."""
        if verdict.disposition is not Disposition.LAPSE:
            return verdict
        for delivery in verdict.deliveries:
            self._policy.release(delivery)
        return Verdict(Disposition.RELEASE, verdict.deliveries)

    def _in_lane_order(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict], now: float) -> list[Verdict]:
        """Put each delivery's verdict to the lane guard, in the order of the lane."""
        if len(verdicts) == 1 and verdicts[0].disposition in PASSES and self.lanes.passes(deliveries):
            return list(verdicts)
        wished = {delivery: verdict.disposition for verdict in verdicts for delivery in verdict.deliveries}
        judged = [(self.lanes.judge(delivery, wished[delivery], now), delivery) for delivery in deliveries]
        # In runs: what is told of a delivery may cover all that lies before it, as a committed offset does.
        runs = groupby(judged, key=itemgetter(0))
        return [Verdict(disposition, [delivery for _, delivery in run]) for disposition, run in runs]

    def _is_undecided(self, delivery: Delivery) -> bool:
        return delivery in self.budget.open and delivery not in self._decided

    def _dispose(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> None:
        # What was given up while it was with the watchers (its epoch has ended) is nobody's to decide about any more.
        in_flight, decided = self.budget.open, self._decided
        deliveries = [one for one in deliveries if one in in_flight and one not in decided]
        if disposition is Disposition.LAPSE:
            self._seal(Sealed(deliveries, None, "not heard, or no longer ours"))
            return
        self.settlement.put(disposition, deliveries)
        self._decided.update(deliveries)

    def _seal(self, sealed: Sealed) -> None:
        deliveries = sealed.deliveries
        self.sealed[sealed.disposition] += len(deliveries)
        self._decided.difference_update(deliveries)
        self.budget.free(deliveries)
        self.leases.forget(deliveries)
        counts = self.consumer.capabilities.delivery_count
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
            self.metrics.count(metrics.LAPSED, len(deliveries), cause=sealed.cause.replace(" ", "_").replace(",", ""))


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

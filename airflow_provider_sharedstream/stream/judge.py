"""From what the watchers said of a batch to what the broker is told of its messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.attendance import attended, unheard
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition, DispositionPolicy, Outcome, Verdict
from airflow_provider_sharedstream.stream.holdings import Holdings
from airflow_provider_sharedstream.stream.lanes import PASSES
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.roster import StreamRoster
from airflow_provider_sharedstream.stream.settings import StreamSettings

log = logging.getLogger(__name__)


class Judge:
    """Judges batches, one after the other, as the stream's settings, its roster and its lanes demand.

    :param consumer: the adapter.
    :param settings: how the stream runs.
    :param holdings: carries the verdicts out.
    :param cohort: who was to be there; None: nobody had to.
    :param stream_metrics: counts.
    :param clock: monotonic.
    """

    def __init__(
        self,
        consumer: BrokerConsumer,
        settings: StreamSettings,
        holdings: Holdings,
        cohort: Cohort | None,
        stream_metrics: StreamMetrics,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policy = DispositionPolicy()
        self._consumer = consumer
        self._settings = settings
        self._holdings = holdings
        self._lanes = holdings.lanes
        self._cohort = cohort
        self._metrics = stream_metrics
        self._clock = clock

    def connected(self, *, first: bool) -> None:
        """Learn whether the source has a place for dead letters.

        :param first: whether the stream has never been connected before; then a source without one is warned of.
        """
        settings, place = self._settings, self._consumer.dead_letter_place
        self.policy = DispositionPolicy(
            on_reject=settings.on_reject,
            reject_quorum=settings.reject_quorum,
            on_unmatched=settings.on_unmatched,
            max_deliveries=settings.max_deliveries,
            release_delay_seconds=settings.release_delay_seconds,
            max_release_delay_seconds=settings.max_release_delay_seconds,
            can_dead_letter=place is not None,
        )
        wanted = "dead_letter" in (settings.on_reject, settings.on_unmatched)
        released_for_ever = place is None and not self._consumer.capabilities.dead_letters_releases
        if first and wanted and released_for_ever:
            log.warning(
                "%s %s has no place for dead letters: a rejected message is released with a growing delay, for ever. "
                "Set %son_reject='accept'.",
                self._consumer.source,
                self._consumer.stream,
                f"{by}, or " if (by := self._consumer.capabilities.dead_letters_by) else "",
            )

    def decide(self, batch: Batch, outcome: Outcome, stream: StreamRoster | None) -> None:
        """Decide what the broker is told about a batch. Never raises."""
        try:
            self._judge(batch, outcome, stream)
        except Exception:
            log.exception("A batch could not be judged; its messages are released")
            with suppress(Exception):
                self.release(batch)

    def _judge(self, batch: Batch, outcome: Outcome, stream: StreamRoster | None) -> None:
        verdicts = self.policy.judge(batch, outcome)
        if stream is not None and self._cohort is not None:
            for number in unheard(batch, stream):
                self._cohort.unheard(number, batch.offered_at)
            verdicts, released = attended(batch, verdicts, stream, self.policy.release)
            self._metrics.count(metrics.UNATTENDED, released)
        if self._consumer.limits.lease_seconds is None:
            verdicts = [self._spell_out(verdict) for verdict in verdicts]
        if batch.deliveries[0].lane is not None:
            verdicts = self._in_lane_order(batch.deliveries, verdicts, self._clock())
        for disposition, deliveries in verdicts:
            self._holdings.dispose(disposition, deliveries)

    def release(self, batch: Batch) -> None:
        """Release what of a batch isn't decided."""
        deliveries = [delivery for delivery in batch.deliveries if self._holdings.is_undecided(delivery)]
        for delivery in deliveries:
            self.policy.release(delivery)
        verdicts = [Verdict(Disposition.RELEASE, deliveries)]
        if deliveries and deliveries[0].lane is not None:
            verdicts = self._in_lane_order(deliveries, verdicts, self._clock())
        for disposition, some in verdicts:
            self._holdings.dispose(disposition, some)

    def _spell_out(self, verdict: Verdict) -> Verdict:
        """Without a lease nothing lapses by itself: say that it shall come again."""
        if verdict.disposition is not Disposition.LAPSE:
            return verdict
        for delivery in verdict.deliveries:
            self.policy.release(delivery)
        return Verdict(Disposition.RELEASE, verdict.deliveries)

    def _in_lane_order(self, deliveries: Sequence[Delivery], verdicts: Sequence[Verdict], now: float) -> list[Verdict]:
        """Put each delivery's verdict to the lane guard, in the order of the lane."""
        if len(verdicts) == 1 and verdicts[0].disposition in PASSES and self._lanes.passes(deliveries):
            return list(verdicts)
        wished = {delivery: verdict.disposition for verdict in verdicts for delivery in verdict.deliveries}
        judged = [(self._lanes.judge(delivery, wished[delivery], now), delivery) for delivery in deliveries]
        # In runs: what is told of a delivery may cover all that lies before it, as a committed offset does.
        runs = groupby(judged, key=itemgetter(0))
        return [Verdict(disposition, [delivery for _, delivery in run]) for disposition, run in runs]

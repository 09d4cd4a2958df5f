"""Every stored event reaches a run.

Airflow 3.3's scheduler makes a run for the events up to the moment at which its queue row was made, then deletes the
row. The rest of a burst stays stored without a run until the asset's next event; so does what was stored while a Dag
was paused. And where two triggerers store events of one Dag's assets, one of a little earlier may become visible after
the run for its time has been made: no later run takes it. Both are found here and given back to the scheduler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from airflow.observability import stats

from airflow_provider_sharedstream import options
from airflow_provider_sharedstream.stream.metrics import Metric
from airflow_provider_sharedstream.supervisor import requeue_changes as changes
from airflow_provider_sharedstream.supervisor import requeue_tables as tables
from airflow_provider_sharedstream.supervisor.requeue_deletions import deleted_until
from airflow_provider_sharedstream.supervisor.requeue_tables import Newest, Pair, Untaken

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

REQUEUED = Metric(
    "sharedstream.requeued",
    "counter",
    "events given back to the scheduler because no run had taken them; `reason`: `stranded`, `late`",
    ("dag_id", "reason"),
)
"""It has no source and no stream: an event doesn't say of which it is."""

OLDEST = timedelta(days=7)
"""Older events are left alone: whose runs Airflow's ``db clean`` has removed look just like them."""

LATE_EVERY_SECONDS = 5.0
LATE_WITHIN = timedelta(seconds=60)
"""How long an event may take from its time to being visible; triggerers' clocks may differ by less."""
LATE_WITHIN_AT_START = timedelta(minutes=10)

MICROSECOND = timedelta(microseconds=1)
"""The databases' precision."""


class Requeue:
    """Finds events without a run, and queues their Dags again.

    Any number of them may sweep one database, beside any number of schedulers: it locks a Dag as a scheduler does
    while it makes the Dag's runs, and looks again under the lock.

    It is off where ``[sharedstream] requeue_stranded_events`` is false, and where Airflow strands nothing.

    :param clock: monotonic.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.on = options.switch("requeue_stranded_events", default=True)
        if self.on and not tables.strands_events():
            self.on = False
            log.info("This Airflow queues every event by itself: no event has to be given back to its scheduler")
        self._settled: dict[Pair, datetime] = {}
        """Pairs that nothing is to be done about, with their newest event."""
        self._clock = clock
        self._late_at = float("-inf")
        """When late events are looked for next."""
        self._late_from = datetime.now(timezone.utc) - LATE_WITHIN_AT_START
        self._postponed_to = self._late_from

    def sweep(self, session: Session, asset_ids: Collection[int]) -> int:
        """Do it once; return how many Dags were queued. It commits.

        :param asset_ids: the assets that triggers of ours watch for.
        """
        if not self.on or not asset_ids:
            return 0
        if self._clock() >= self._late_at:
            first, self._late_at = self._late_at < 0, self._clock() + LATE_EVERY_SECONDS
            began = datetime.now(timezone.utc)
            mended = self._mend_late(session, asset_ids)
            self._late_from = began - LATE_WITHIN
            if not (mended or first):
                return 0  # one query a sweep
        oldest = datetime.now(timezone.utc) - OLDEST
        found = tables.find_newest(session, asset_ids, oldest)
        self._settled = {one.pair: one.newest for one in found if self._settled.get(one.pair) == one.newest}
        changed = [one for one in found if one.pair not in self._settled]
        runs = tables.last_runs(session, {one.pair.dag_id for one in changed})
        session.commit()
        queued = 0
        for one in changed:
            if one.newest > runs.get(one.pair.dag_id, one.since):
                queued += self._queue(session, one.pair, oldest)
            else:
                self._settled[one.pair] = one.newest
        return queued

    def _queue(self, session: Session, pair: Pair, oldest: datetime) -> bool:
        if not changes.lock(session, pair.dag_id):
            session.rollback()
            return False
        # Nobody makes runs of the Dag now; what was seen before the lock may have been taken meanwhile.
        found = tables.find_newest(session, [pair.asset_id], oldest, pair=pair)
        run_after = tables.last_runs(session, [pair.dag_id]).get(pair.dag_id)
        if not found or found[0].newest <= (run_after or found[0].since):
            session.rollback()
            return False
        if not self._is_to_run(session, found[0], run_after):
            session.rollback()
            self._settled[pair] = found[0].newest
            return False
        events = tables.count_events(session, pair, run_after or found[0].since)
        name = tables.asset_name(session, pair)
        queued = changes.queue(session, pair, found[0].newest)
        session.commit()
        if queued:
            log.info("Dag %s is queued again for %d events of %s that no run had taken", pair.dag_id, events, name)
            _count("stranded", pair, events)
        return queued

    def _is_to_run(self, session: Session, one: Newest, run_after: datetime | None) -> bool:
        if run_after is not None and one.newest <= one.since and not tables.took(session, one.pair, run_after):
            # From before the Dag was scheduled on the asset. Where its last run took events of it, it had been
            # scheduled on it earlier too, and its file was away for a while.
            return False
        deleted = deleted_until(session, one.pair, run_after or one.since)
        if deleted is not None and one.newest <= deleted:
            log.info("Events of Dag %s up to %s were deleted by somebody and are left alone", one.pair.dag_id, deleted)
            return False
        return tables.reaches(session, one.pair)

    def _mend_late(self, session: Session, asset_ids: Collection[int]) -> int:
        """Give late events a time that the next run takes, in their order; the sweep then finds them.

        :return: how many it were.
        """
        mended = 0
        untaken = tables.find_untaken(session, asset_ids, self._late_from)
        runs = tables.last_runs(session, {event.pair.dag_id for event in untaken})
        late = [event for event in untaken if event.pair.dag_id in runs and event.timestamp <= runs[event.pair.dag_id]]
        if late:
            # A run may have been made, and have taken them, between the two questions.
            still = set(tables.find_untaken(session, asset_ids, self._late_from))
            late = [event for event in late if event in still]
        if late:
            rows = tables.queued_at(session, {event.pair.dag_id for event in late})
            deleted = {pair: deleted_until(session, pair, self._late_from) for pair in {event.pair for event in late}}
            for event in late:
                run_after, row, until = runs[event.pair.dag_id], rows.get(event.pair), deleted[event.pair]
                if row is not None and event.timestamp <= row <= run_after:
                    continue  # A triggerer's clock is behind; the row's own run will take the event.
                if (until is None or event.timestamp > until) and self._postpone(session, event, run_after):
                    log.info("Event %d became visible after its run of Dag %s", event.event_id, event.pair.dag_id)
                    _count("late", event.pair, 1)
                    mended += 1
        session.commit()
        return mended

    def _postpone(self, session: Session, event: Untaken, run_after: datetime) -> bool:
        self._postponed_to = max(datetime.now(timezone.utc), run_after, self._postponed_to) + MICROSECOND
        return changes.postpone(session, event, self._postponed_to)


def _count(reason: str, pair: Pair, events: int) -> None:
    try:
        stats.incr(REQUEUED.name, events, tags={"dag_id": pair.dag_id, "reason": reason})
    except Exception as error:  # a metric is no reason to leave an event without a run
        log.debug("The metric %s can't be told: %s", REQUEUED.name, error)

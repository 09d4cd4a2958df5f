"""The thread that sweeps once a second, whether triggerers keep a cohort or not.

Nothing that happens here may reach the triggerer, and nothing ends the thread but a switch, or an Airflow that it
wasn't made for.
"""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.supervisor import tables
from airflow_provider_sharedstream.supervisor.identity import identify
from airflow_provider_sharedstream.supervisor.requeue import Requeue

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
ASSETS_EVERY_SECONDS = 5.0
LONGEST_OUTAGE_SECONDS = 10.0
LONGEST_SURPRISE_SECONDS = 600.0
"""What nobody has foreseen, a table that has changed for one, seldom passes by itself."""


class WatchedAssets:
    """The assets that triggers of ours watch for, read anew every few seconds."""

    def __init__(self) -> None:
        self.ids: frozenset[int] = frozenset()
        self._ours: dict[int, bool] = {}
        """By trigger; what a row holds never changes."""
        self._read_at = float("-inf")

    def refresh(self, session: Session) -> bool:
        """Read them if it is time to; return whether it was."""
        if time.monotonic() - self._read_at < ASSETS_EVERY_SECONDS:
            return False
        rows = tables.read_watchers(session, 0.0)
        new = {row.trigger_id: row for row in rows if row.trigger_id not in self._ours}
        self._ours = {row.trigger_id: self._ours.get(row.trigger_id, False) for row in rows}
        for number, arguments in (tables.read_arguments(session, new) if new else {}).items():
            self._ours[number] = identify(new[number].name, new[number].classpath, arguments) is not None
        self.ids = frozenset(link.asset_id for row in rows if self._ours[row.trigger_id] for link in row.links)
        self._read_at = time.monotonic()
        return True


def requeue_for_ever() -> None:
    """Sweep until the process ends. Never raises."""
    outage = Backoff(1.0, LONGEST_OUTAGE_SECONDS)
    surprise = Backoff(1.0, LONGEST_SURPRISE_SECONDS, jitter=lambda: 0.5 + random.random() / 2)
    requeue: Requeue | None = None
    assets = WatchedAssets()
    worked = False
    said: set[type[Exception]] = set()
    """What was unforeseen since it last worked."""
    while True:
        began = time.monotonic()
        pause = EVERY_SECONDS
        try:
            if requeue is None:
                tables.check()
                requeue = Requeue()
            if not requeue.on:
                return
            # Where only the assets were read, the rest may fail still.
            if sweep(requeue, assets) is not None:
                worked = True
                outage.reset()
                surprise.reset()
                if said:
                    log.info("Events without a run can be looked for again")
                    said.clear()
        except Exception as error:
            if isinstance(error, tables.TablesChanged) or (not worked and tables.is_change(error)):
                log.error(
                    "Events that no run has taken are not given back to the scheduler: it was made for Airflow %s, and "
                    "this one is another: %s",
                    tables.CHECKED,
                    error,
                )
                return
            if tables.is_outage(error):
                if outage.failures == 1:
                    # The first may be two writers that meet, and nothing to speak of.
                    log.warning("Events without a run can't be looked for at present: %s", error)
                pause = outage.next_seconds()
            else:
                pause = surprise.next_seconds()
                if type(error) not in said:
                    said.add(type(error))
                    _say(error)
        time.sleep(max(0.1, pause - (time.monotonic() - began)))


def _say(error: Exception) -> None:
    if tables.is_change(error):
        log.error(
            "Events that no run has taken are not given back to the scheduler any more: Airflow's tables are not what "
            "they were when the triggerer was started. If Airflow was upgraded, start it again. It is tried again, in "
            "the end every %.0f minutes: %s",
            LONGEST_SURPRISE_SECONDS / 60,
            error,
        )
    else:
        log.error(
            "Events without a run can't be looked for, which is tried again, in the end every %.0f minutes",
            LONGEST_SURPRISE_SECONDS / 60,
            exc_info=error,
        )


def sweep(requeue: Requeue, assets: WatchedAssets) -> int | None:
    """Do it once, with a session of Airflow's; return how many Dags were queued.

    Where nothing has to be done it is one query. So when the assets are read nothing else is looked for: None.
    """
    from airflow.utils.session import create_session

    with create_session() as session:
        return None if assets.refresh(session) else requeue.sweep(session, assets.ids)

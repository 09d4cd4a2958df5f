"""Beside the thread that watches, one that gives events without a run back to Airflow's scheduler.

It has a thread of its own because it waits for locks that schedulers hold, and the roster must not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Protocol

from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.supervisor import tables

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 60.0


class Watched(Protocol):
    """Whoever knows what is watched."""

    @property
    def asset_ids(self) -> Collection[int]:
        """The assets that triggers of ours watch for."""


def sweep_beside(watched: Watched) -> None:
    """Start the thread."""
    threading.Thread(target=sweep_for_ever, args=(watched,), name="sharedstream-requeue", daemon=True).start()


def sweep_for_ever(watched: Watched) -> None:
    """Sweep until the process ends, or return at once where it is not needed. Never raises."""
    from airflow.utils.session import create_session

    from airflow_provider_sharedstream.supervisor.requeue import Requeue

    requeue: Requeue | None = None
    backoff = Backoff(1.0, LONGEST_BACKOFF_SECONDS)
    while True:
        pause = EVERY_SECONDS
        try:
            if requeue is None:
                requeue = Requeue()
            if not requeue.on:
                return
            with create_session() as session:
                requeue.sweep(session, watched.asset_ids)
            backoff.reset()
        except Exception as error:
            pause = backoff.next_seconds()
            if not tables.is_outage(error):
                log.exception("Events without a run can't be looked for, and it is tried again in %.0f s", pause)
            elif backoff.failures == 1:
                log.warning("Events without a run can't be looked for at present: %s", error)
        time.sleep(pause)

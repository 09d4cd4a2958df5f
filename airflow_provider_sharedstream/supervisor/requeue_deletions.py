"""What somebody deleted on purpose, by Airflow's audit log: it shall not come back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_sharedstream.supervisor.requeue_tables import ASSET_TRIGGERED, Pair

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

DELETIONS = (
    "delete_asset_queued_events",
    "delete_dag_asset_queued_events",
    "delete_dag_asset_queued_event",
    "delete_dag_run",
    "bulk_dag_runs",
)
"""What Airflow's audit log calls the ways in which somebody deletes queue rows or runs."""


def deleted_until(session: Session, pair: Pair, after: datetime) -> datetime | None:
    """Return up to when somebody has deleted queue rows or runs of the Dag: events up to then shall not come back.

    :param after: what was deleted before doesn't matter.
    """
    from airflow.models.log import Log
    from sqlalchemy import or_, select

    query = select(Log.event, Log.dttm, Log.dag_id, Log.run_id, Log.extra).where(
        Log.dttm > after,
        Log.event.in_(DELETIONS),
        or_(Log.dag_id == pair.dag_id, Log.dag_id == "~", Log.dag_id.is_(None)),
    )
    moments = [moment for row in session.execute(query) for moment in _deletions(row, pair)]
    return max(moments, default=None)


def _deletions(row: Any, pair: Pair) -> Iterator[datetime]:
    if row.event == "delete_dag_run":
        yield _run_after(row.run_id) or row.dttm
        return
    try:
        extra = json.loads(row.extra or "{}")
    except ValueError:
        extra = {}
    if row.event == "bulk_dag_runs":
        for action in extra.get("actions") or ():
            if action.get("action") == "delete":
                for entity in action.get("entities") or ():
                    run = {"dag_run_id": entity} if isinstance(entity, str) else entity
                    if run.get("dag_id", row.dag_id) == pair.dag_id:
                        yield _run_after(run.get("dag_run_id")) or row.dttm
    elif str(extra.get("asset_id", pair.asset_id)) == str(pair.asset_id):
        yield row.dttm


def _run_after(run_id: str | None) -> datetime | None:
    """Return up to when an event-driven run took events, by its id."""
    kind, _, rest = (run_id or "").partition("__")
    try:
        return datetime.fromisoformat(rest.rpartition("_")[0]) if kind == ASSET_TRIGGERED else None
    except ValueError:
        return None

"""What requeueing changes in Airflow's tables, and the lock under which it does."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.supervisor.requeue_tables import ASSET_TRIGGERED, Pair, Untaken

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def lock(session: Session, dag_id: str) -> bool:
    """Lock a Dag until the transaction ends, as a scheduler does that makes its runs.

    SQLite locks no rows; there, :func:`queue` looks again by itself.

    :return: False where it is paused or gone, or somebody else has locked it.
    """
    from airflow.models.dag import DagModel
    from airflow.utils.sqlalchemy import with_row_locks
    from sqlalchemy import select

    query = select(DagModel.dag_id).where(
        DagModel.dag_id == dag_id, DagModel.is_paused.is_(False), DagModel.is_stale.is_(False)
    )
    return session.scalar(with_row_locks(query, session, of=DagModel, skip_locked=True)) is not None


def queue(session: Session, pair: Pair, created_at: datetime) -> bool:
    """Queue a Dag for events up to ``created_at``. False: somebody else just has.

    It is the newest event's time and not the present: an event of a little earlier that is not visible yet would be
    passed over by the run.
    """
    from airflow.models.asset import AssetDagRunQueue
    from airflow.models.dagrun import DagRun
    from airflow.utils.sqlalchemy import get_dialect_name
    from sqlalchemy import insert, literal, select
    from sqlalchemy.dialects.sqlite import insert as insert_or_ignore
    from sqlalchemy.exc import IntegrityError

    columns = AssetDagRunQueue.__table__.c
    values = {columns.asset_id: pair.asset_id, columns.target_dag_id: pair.dag_id, columns.created_at: created_at}
    if get_dialect_name(session) == "sqlite":
        # One statement, so that the triggerer never waits for this one's reading: it ends when it has waited too long.
        taken = select(DagRun.id).where(
            DagRun.dag_id == pair.dag_id, DagRun.run_type == ASSET_TRIGGERED, DagRun.run_after >= created_at
        )
        row = select(*(literal(value, column.type) for column, value in values.items())).where(~taken.exists())
        done = session.execute(
            insert_or_ignore(AssetDagRunQueue).from_select(list(values), row).on_conflict_do_nothing()
        )
        return bool(getattr(done, "rowcount", 0))
    try:
        with session.begin_nested():
            session.execute(insert(AssetDagRunQueue).values({column.name: value for column, value in values.items()}))
    except IntegrityError:
        return False
    return True


def postpone(session: Session, event: Untaken, to: datetime) -> bool:
    """Give an event a time that the next run takes. False: somebody else just has."""
    from airflow.models.asset import AssetEvent
    from sqlalchemy import update

    done = session.execute(
        update(AssetEvent)
        .where(AssetEvent.id == event.event_id, AssetEvent.timestamp == event.timestamp)
        .values(timestamp=to)
        .execution_options(synchronize_session=False)
    )
    return bool(getattr(done, "rowcount", 0))

"""All access to Airflow's models that requeueing needs, checked against 3.3.0, 3.3.1 and 3.3.2.

What those versions do: the first event of an asset puts a row into ``asset_dag_run_queue`` for each Dag that is
scheduled on it, and later events find it there and leave it as it is. A run takes the events that are later than the
run before it (by ``run_after``) and not later than the newest of the Dag's rows; the rows are then deleted.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Subquery
    from sqlalchemy.orm import Session

QUEUE_KEY = frozenset({"asset_id", "target_dag_id"})

DELETIONS = (
    "delete_asset_queued_events",
    "delete_dag_asset_queued_events",
    "delete_dag_asset_queued_event",
    "delete_dag_run",
    "bulk_dag_runs",
)
"""What Airflow's audit log calls the ways in which somebody deletes queue rows or runs."""

ASSET_TRIGGERED = "asset_triggered"


class Pair(NamedTuple):
    """An asset and a Dag that is scheduled on it.

    :param asset_id: the asset.
    :param dag_id: the Dag.
    """

    asset_id: int
    dag_id: str


class Stranded(NamedTuple):
    """Events of an asset that no run of a Dag has taken, and that nothing queues the Dag for.

    :param pair: the asset and the Dag.
    :param since: when the Dag was scheduled on the asset.
    :param run_after: up to when the Dag's last event-driven run took events; None: there is none.
    :param newest: the time of the newest event.
    """

    pair: Pair
    since: datetime
    run_after: datetime | None
    newest: datetime


class Late(NamedTuple):
    """An event that became visible after a run had been made for its time.

    :param event_id: the event.
    :param pair: its asset, and the Dag that misses it.
    :param timestamp: its time.
    :param run_after: up to when the Dag's last event-driven run took events.
    """

    event_id: int
    pair: Pair
    timestamp: datetime
    run_after: datetime


def strands_events() -> bool:
    """Whether this Airflow leaves events without a run: its queue has one row for all events of an asset.

    Airflow 3.4's has a row for each event; there nothing is to be mended.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import inspect

    return {column.name for column in inspect(AssetDagRunQueue).primary_key} == QUEUE_KEY


def find_stranded(
    session: Session, asset_ids: Collection[int], after: datetime, *, pair: Pair | None = None
) -> list[Stranded]:
    """Return what is stranded. It is a query of index look-ups, whatever the number of events and runs.

    :param asset_ids: the assets.
    :param after: older events are left alone.
    :param pair: only this one.
    """
    from airflow.models.asset import AssetDagRunQueue, AssetEvent
    from airflow.models.dagrun import DagRun
    from sqlalchemy import and_, func, select

    scheduled = _scheduled(asset_ids, pair)
    newest = (
        select(func.max(AssetEvent.timestamp))
        .where(AssetEvent.asset_id == scheduled.c.asset_id, AssetEvent.timestamp > after, *_queues_dags())
        .scalar_subquery()
    )
    run_after = (
        select(func.max(DagRun.run_after))
        .where(DagRun.dag_id == scheduled.c.dag_id, DagRun.run_type == ASSET_TRIGGERED)
        .scalar_subquery()
    )
    queued = select(AssetDagRunQueue.asset_id).where(
        and_(AssetDagRunQueue.asset_id == scheduled.c.asset_id, AssetDagRunQueue.target_dag_id == scheduled.c.dag_id)
    )
    found = select(scheduled, run_after.label("run_after"), newest.label("newest")).where(~queued.exists()).subquery()
    query = select(found).where(found.c.newest > func.coalesce(found.c.run_after, found.c.since))
    pairs: dict[Pair, Stranded] = {}
    for row in session.execute(query):
        one = Stranded(Pair(row.asset_id, row.dag_id), row.since, row.run_after, row.newest)
        known = pairs.get(one.pair)
        # A Dag may be scheduled on an asset twice: by the asset, and by its name.
        if known is None or one.since < known.since:
            pairs[one.pair] = one
    return list(pairs.values())


def find_late(session: Session, asset_ids: Collection[int], after: datetime) -> list[Late]:
    """Return events that a run should have taken by their time, and has not, in the order of their time.

    :param asset_ids: the assets.
    :param after: older events are left alone.
    """
    from airflow.models.asset import AssetDagRunQueue, AssetEvent, association_table
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func, select

    scheduled = _scheduled(asset_ids, by_reference=False)
    run_after = (
        select(func.max(DagRun.run_after))
        .where(DagRun.dag_id == scheduled.c.dag_id, DagRun.run_type == ASSET_TRIGGERED)
        .scalar_subquery()
    )
    taken = (
        select(association_table.c.event_id)
        .join(DagRun, DagRun.id == association_table.c.dag_run_id)
        .where(association_table.c.event_id == AssetEvent.id, DagRun.dag_id == scheduled.c.dag_id)
    )
    # Where a triggerer's clock is behind, a row may be older than the last run; its own run takes the event then.
    awaited = select(AssetDagRunQueue.asset_id).where(
        AssetDagRunQueue.asset_id == scheduled.c.asset_id,
        AssetDagRunQueue.target_dag_id == scheduled.c.dag_id,
        AssetDagRunQueue.created_at >= AssetEvent.timestamp,
        AssetDagRunQueue.created_at <= run_after,
    )
    query = (
        select(scheduled, AssetEvent.id, AssetEvent.timestamp, run_after.label("run_after"))
        .join(AssetEvent, AssetEvent.asset_id == scheduled.c.asset_id)
        .where(
            AssetEvent.timestamp > after,
            AssetEvent.timestamp > scheduled.c.since,
            AssetEvent.timestamp <= run_after,
            *_queues_dags(),
            ~taken.exists(),
            ~awaited.exists(),
        )
        .order_by(AssetEvent.timestamp, AssetEvent.id)
    )
    return [
        Late(row.id, Pair(row.asset_id, row.dag_id), row.timestamp, row.run_after) for row in session.execute(query)
    ]


def _scheduled(asset_ids: Collection[int], pair: Pair | None = None, *, by_reference: bool = True) -> Subquery:
    """Which Dags that can run are scheduled on which assets, and since when.

    Aliases are not among it: a Dag that is scheduled on an alias is queued for events that a task emitted through the
    alias, and a watcher's are not.

    :param by_reference: also by a reference to the asset's name or URI. Such a Dag is queued, but its runs are given
        no events.
    """
    from airflow.models.asset import (
        AssetModel,
        DagScheduleAssetNameReference,
        DagScheduleAssetReference,
        DagScheduleAssetUriReference,
    )
    from airflow.models.dag import DagModel
    from sqlalchemy import select, union_all

    ways: list[Any] = [
        select(
            DagScheduleAssetReference.asset_id.label("asset_id"),
            DagScheduleAssetReference.dag_id.label("dag_id"),
            DagScheduleAssetReference.created_at.label("since"),
        ).where(DagScheduleAssetReference.asset_id.in_(asset_ids))
    ]
    if by_reference:
        for reference, same in (
            (DagScheduleAssetNameReference, DagScheduleAssetNameReference.name == AssetModel.name),
            (DagScheduleAssetUriReference, DagScheduleAssetUriReference.uri == AssetModel.uri),
        ):
            ways.append(
                select(AssetModel.id, reference.dag_id, reference.created_at)
                .join(AssetModel, same)
                .where(AssetModel.id.in_(asset_ids), AssetModel.active.has())
            )
    every = union_all(*ways).subquery()
    query = (
        select(every)
        .join(DagModel, DagModel.dag_id == every.c.dag_id)
        .where(
            DagModel.is_paused.is_(False),
            DagModel.is_stale.is_(False),
            # Its runs are queued elsewhere, by partition.
            DagModel.timetable_partitioned.is_(False),
        )
    )
    if pair is not None:
        query = query.where(every.c.asset_id == pair.asset_id, every.c.dag_id == pair.dag_id)
    return query.subquery()


def _queues_dags() -> list[ColumnElement[bool]]:
    """Which events queue the Dags of :func:`_scheduled`."""
    from airflow.models.asset import AssetEvent

    conditions: list[ColumnElement[bool]] = [AssetEvent.partition_key.is_(None)]
    if _multi_team():
        # Whom a task's or a person's event may reach depends on their teams.
        conditions.append(AssetEvent.extra["from_trigger"].as_boolean().is_(True))
    return conditions


def _multi_team() -> bool:
    from airflow.configuration import conf

    return conf.getboolean("core", "multi_team", fallback=False)


def lock(session: Session, dag_id: str) -> bool:
    """Lock a Dag until the transaction ends, as a scheduler does that makes its runs.

    :return: False where it is paused or gone, or somebody else has locked it.
    """
    from airflow.models.dag import DagModel
    from airflow.utils.sqlalchemy import get_dialect_name, with_row_locks
    from sqlalchemy import select, update

    if get_dialect_name(session) == "sqlite":
        # It has one writer at a time, which is whoever has written last.
        same = update(DagModel).where(DagModel.dag_id == dag_id).values(dag_id=DagModel.dag_id)
        session.execute(same.execution_options(synchronize_session=False))
    query = select(DagModel.dag_id).where(
        DagModel.dag_id == dag_id, DagModel.is_paused.is_(False), DagModel.is_stale.is_(False)
    )
    return session.scalar(with_row_locks(query, session, of=DagModel, skip_locked=True)) is not None


def belongs(session: Session, stranded: Stranded) -> bool:
    """Whether events from before the Dag was scheduled on the asset are the Dag's: it was scheduled on it before, and
    its last run took events of it. So it is with a Dag whose file was away for a while.
    """
    from airflow.models.asset import AssetEvent, association_table
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    query = (
        select(AssetEvent.id)
        .join(association_table, association_table.c.event_id == AssetEvent.id)
        .join(DagRun, DagRun.id == association_table.c.dag_run_id)
        .where(
            AssetEvent.asset_id == stranded.pair.asset_id,
            DagRun.dag_id == stranded.pair.dag_id,
            DagRun.run_type == ASSET_TRIGGERED,
            DagRun.run_after == stranded.run_after,
        )
        .limit(1)
    )
    return session.scalar(query) is not None


def reaches(session: Session, pair: Pair) -> bool:
    """Whether Airflow lets a trigger's event of the asset queue the Dag, as far as teams are concerned."""
    if not _multi_team():
        return True
    from airflow.assets.manager import AssetManager
    from airflow.models.asset import AssetModel
    from airflow.models.dag import DagModel

    asset, dag = session.get(AssetModel, pair.asset_id), session.get(DagModel, pair.dag_id)
    if asset is None or dag is None:
        return False
    return bool(AssetManager._filter_dags_by_team({dag}, set(), asset, False, session=session))


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


def queue(session: Session, pair: Pair, created_at: datetime) -> bool:
    """Queue a Dag for events up to ``created_at``. False: somebody else just has.

    It is the newest event's time and not the present: an event of a little earlier that is not visible yet would be
    passed over by the run.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import insert
    from sqlalchemy.exc import IntegrityError

    values = {"asset_id": pair.asset_id, "target_dag_id": pair.dag_id, "created_at": created_at}
    try:
        with session.begin_nested():
            session.execute(insert(AssetDagRunQueue).values(values))
    except IntegrityError:
        return False
    return True


def count_events(session: Session, stranded: Stranded) -> int:
    """Return how many events are stranded."""
    from airflow.models.asset import AssetEvent
    from sqlalchemy import func, select

    query = select(func.count(AssetEvent.id)).where(
        AssetEvent.asset_id == stranded.pair.asset_id,
        AssetEvent.timestamp > (stranded.run_after or stranded.since),
        *_queues_dags(),
    )
    return session.scalar(query) or 0


def postpone(session: Session, late: Late, to: datetime) -> bool:
    """Give a late event a time that the next run takes. False: somebody else just has."""
    from airflow.models.asset import AssetEvent
    from sqlalchemy import update

    done = session.execute(
        update(AssetEvent)
        .where(AssetEvent.id == late.event_id, AssetEvent.timestamp == late.timestamp)
        .values(timestamp=to)
        .execution_options(synchronize_session=False)
    )
    return bool(getattr(done, "rowcount", 0))


def asset_name(session: Session, pair: Pair) -> str:
    """Return the asset's name, for logs."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select

    return session.scalar(select(AssetModel.name).where(AssetModel.id == pair.asset_id)) or str(pair.asset_id)

"""What requeueing reads of Airflow's models, checked against 3.3.0, 3.3.1 and 3.3.2.

What those versions do: the first event of an asset puts a row into ``asset_dag_run_queue`` for each Dag that is
scheduled on it, and later events find it there and leave it as it is. A run takes the events that are later than the
run before it (by ``run_after``) and not later than the newest of the Dag's rows; the rows are then deleted.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Subquery
    from sqlalchemy.orm import Session

QUEUE_KEY = frozenset({"asset_id", "target_dag_id"})

ASSET_TRIGGERED = "asset_triggered"


class Pair(NamedTuple):
    """An asset and a Dag that is scheduled on it.

    :param asset_id: the asset.
    :param dag_id: the Dag.
    """

    asset_id: int
    dag_id: str


class Newest(NamedTuple):
    """An asset and a Dag that isn't queued for it.

    :param pair: the asset and the Dag.
    :param since: when the Dag was scheduled on the asset.
    :param newest: the time of the asset's newest event.
    """

    pair: Pair
    since: datetime
    newest: datetime


class Untaken(NamedTuple):
    """An event that is in no run of a Dag.

    :param event_id: the event.
    :param pair: its asset, and the Dag.
    :param timestamp: its time.
    """

    event_id: int
    pair: Pair
    timestamp: datetime


def strands_events() -> bool:
    """Whether this Airflow leaves events without a run: its queue has one row for all events of an asset.

    Airflow 3.4's has a row for each event; there nothing is to be mended.
    """
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import inspect

    return {column.name for column in inspect(AssetDagRunQueue).primary_key} == QUEUE_KEY


def find_newest(
    session: Session, asset_ids: Collection[int], after: datetime, *, pair: Pair | None = None
) -> list[Newest]:
    """Return the newest event for each Dag that isn't queued for its asset: index look-ups, whatever the number of
    events.

    :param asset_ids: the assets.
    :param after: older events are left alone.
    :param pair: only this one.
    """
    from airflow.models.asset import AssetDagRunQueue, AssetEvent
    from sqlalchemy import select

    scheduled = _scheduled(asset_ids, pair)
    newest = (
        # Not max(): MySQL would read all of the asset's events for it.
        select(AssetEvent.timestamp)
        .where(AssetEvent.asset_id == scheduled.c.asset_id, AssetEvent.timestamp > after, *_queues_dags())
        .order_by(AssetEvent.timestamp.desc())
        .limit(1)
        .scalar_subquery()
    )
    queued = select(AssetDagRunQueue.asset_id).where(
        AssetDagRunQueue.asset_id == scheduled.c.asset_id, AssetDagRunQueue.target_dag_id == scheduled.c.dag_id
    )
    found: dict[Pair, Newest] = {}
    for row in session.execute(select(scheduled, newest.label("newest")).where(~queued.exists())):
        one = Newest(Pair(row.asset_id, row.dag_id), row.since, row.newest)
        known = found.get(one.pair)
        # A Dag may be scheduled on an asset twice: by the asset, and by its name.
        if row.newest is not None and (known is None or one.since < known.since):
            found[one.pair] = one
    return list(found.values())


def last_runs(session: Session, dag_ids: Collection[str]) -> dict[str, datetime]:
    """Return up to when the last event-driven run of each Dag took events; without the Dags that have none."""
    from airflow.models.dagrun import DagRun
    from sqlalchemy import func, select

    if not dag_ids:
        return {}
    query = (
        select(DagRun.dag_id, func.max(DagRun.run_after))
        .where(DagRun.dag_id.in_(dag_ids), DagRun.run_type == ASSET_TRIGGERED)
        .group_by(DagRun.dag_id)
    )
    return {row[0]: row[1] for row in session.execute(query)}


def find_untaken(session: Session, asset_ids: Collection[int], after: datetime) -> list[Untaken]:
    """Return events that are in no run of a Dag that is scheduled on their asset, in the order of their time.

    :param asset_ids: the assets.
    :param after: older events are left alone.
    """
    from airflow.models.asset import AssetEvent, association_table
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    scheduled = _scheduled(asset_ids, by_reference=False)
    taken = (
        select(association_table.c.event_id)
        .join(DagRun, DagRun.id == association_table.c.dag_run_id)
        .where(association_table.c.event_id == AssetEvent.id, DagRun.dag_id == scheduled.c.dag_id)
    )
    query = (
        select(scheduled, AssetEvent.id, AssetEvent.timestamp)
        .join(AssetEvent, AssetEvent.asset_id == scheduled.c.asset_id)
        .where(AssetEvent.timestamp > after, AssetEvent.timestamp > scheduled.c.since, *_queues_dags(), ~taken.exists())
        .order_by(AssetEvent.timestamp, AssetEvent.id)
    )
    return [Untaken(row.id, Pair(row.asset_id, row.dag_id), row.timestamp) for row in session.execute(query)]


def queued_at(session: Session, dag_ids: Collection[str]) -> dict[Pair, datetime]:
    """Return the times of Dags' rows in the queue."""
    from airflow.models.asset import AssetDagRunQueue
    from sqlalchemy import select

    query = select(AssetDagRunQueue.asset_id, AssetDagRunQueue.target_dag_id, AssetDagRunQueue.created_at).where(
        AssetDagRunQueue.target_dag_id.in_(dag_ids)
    )
    return {Pair(asset_id, dag_id): created_at for asset_id, dag_id, created_at in session.execute(query)}


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


def took(session: Session, pair: Pair, run_after: datetime) -> bool:
    """Whether the Dag's run of that time took events of the asset."""
    from airflow.models.asset import AssetEvent, association_table
    from airflow.models.dagrun import DagRun
    from sqlalchemy import select

    query = (
        select(AssetEvent.id)
        .join(association_table, association_table.c.event_id == AssetEvent.id)
        .join(DagRun, DagRun.id == association_table.c.dag_run_id)
        .where(
            AssetEvent.asset_id == pair.asset_id,
            DagRun.dag_id == pair.dag_id,
            DagRun.run_type == ASSET_TRIGGERED,
            DagRun.run_after == run_after,
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


def count_events(session: Session, pair: Pair, after: datetime) -> int:
    """Return how many events of the asset are later than ``after``."""
    from airflow.models.asset import AssetEvent
    from sqlalchemy import func, select

    query = select(func.count(AssetEvent.id)).where(
        AssetEvent.asset_id == pair.asset_id, AssetEvent.timestamp > after, *_queues_dags()
    )
    return session.scalar(query) or 0


def asset_name(session: Session, pair: Pair) -> str:
    """Return the asset's name, for logs."""
    from airflow.models.asset import AssetModel
    from sqlalchemy import select

    return session.scalar(select(AssetModel.name).where(AssetModel.id == pair.asset_id)) or str(pair.asset_id)

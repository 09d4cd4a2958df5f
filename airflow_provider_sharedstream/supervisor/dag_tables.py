"""What Airflow's tables say of Dags: which are scheduled on an asset, and what watchers they declare.

Checked against the versions that ``tables`` names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.supervisor.declared import Declared, declared_watchers

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

DAGS_AT_ONCE = 50


def read_dags(session: Session, asset_ids: Iterable[int]) -> dict[int, frozenset[str]]:
    """Return which Dags are scheduled on some assets."""
    from airflow.models.asset import DagScheduleAssetReference
    from sqlalchemy import select

    reference = DagScheduleAssetReference
    query = select(reference.asset_id, reference.dag_id).where(reference.asset_id.in_(list(asset_ids)))
    found: dict[int, set[str]] = {}
    for asset_id, dag_id in session.execute(query):
        found.setdefault(asset_id, set()).add(dag_id)
    return {asset_id: frozenset(dag_ids) for asset_id, dag_ids in found.items()}


def read_watched_assets(session: Session, dags: Mapping[int, frozenset[str]]) -> dict[int, datetime]:
    """Return which of some assets have watchers if their Dags declare any, with the time of those Dags' last parse.

    It is what Airflow's Dag processor asks: the asset is active, and a Dag that is neither stale nor paused is
    scheduled on it. Besides, a Dag whose file can't be imported at present counts too. Airflow takes it for stale, and
    may have forgotten what it was scheduled on.

    :param dags: by asset, those that were scheduled on it when it had watchers.
    """
    from airflow.models.asset import AssetModel, DagScheduleAssetReference
    from airflow.models.dag import DagModel
    from sqlalchemy import func, select

    query = (
        select(AssetModel.id, func.max(DagModel.last_parsed_time))
        .join(DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id)
        .join(DagModel, DagModel.dag_id == DagScheduleAssetReference.dag_id)
        .where(AssetModel.id.in_(list(dags)), AssetModel.active.has(), ~DagModel.is_stale, ~DagModel.is_paused)
        .group_by(AssetModel.id)
    )
    found = {asset_id: parsed for asset_id, parsed in session.execute(query) if parsed is not None}
    dag_ids = {dag_id for asset_id, those in dags.items() if asset_id not in found for dag_id in those}
    if dag_ids:
        broken_query = select(DagModel.dag_id, DagModel.last_parsed_time).where(
            DagModel.dag_id.in_(dag_ids), DagModel.has_import_errors.is_(True), ~DagModel.is_paused
        )
        broken = {dag_id: parsed for dag_id, parsed in session.execute(broken_query) if parsed is not None}
        for asset_id, those in dags.items():
            if asset_id not in found and (parsed := [broken[dag_id] for dag_id in those if dag_id in broken]):
                found[asset_id] = max(parsed)
    return found


def read_declared(session: Session) -> Iterator[tuple[int, Declared]]:
    """Yield the watchers that active, unpaused Dags declare on active assets, with the assets' ids.

    It reads those Dags whole: for once, at a start.
    """
    from airflow.models.asset import AssetModel, DagScheduleAssetReference
    from airflow.models.dag import DagModel
    from airflow.models.serialized_dag import SerializedDagModel
    from sqlalchemy import select

    assets: dict[tuple[str, str], int] = {}
    dag_ids: set[str] = set()
    query = (
        select(AssetModel.id, AssetModel.name, AssetModel.uri, DagModel.dag_id)
        .join(DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id)
        .join(DagModel, DagModel.dag_id == DagScheduleAssetReference.dag_id)
        .where(AssetModel.active.has(), ~DagModel.is_stale, ~DagModel.is_paused)
    )
    for asset_id, name, uri, dag_id in session.execute(query):
        assets[name, uri] = asset_id
        dag_ids.add(dag_id)
    waiting = sorted(dag_ids)
    for start in range(0, len(waiting), DAGS_AT_ONCE):
        chunk = waiting[start : start + DAGS_AT_ONCE]
        for dag in SerializedDagModel.get_latest_serialized_dags(dag_ids=chunk, session=session):
            # An asset that the Dag's tasks update may have watchers there too, and none by this Dag's schedule.
            for declared in declared_watchers((dag.data or {}).get("dag", {}).get("timetable")):
                if (known := assets.get((declared.asset, declared.uri))) is not None:
                    yield known, declared
        session.expunge_all()

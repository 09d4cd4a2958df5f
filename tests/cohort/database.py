"""Airflow's tables on a real PostgreSQL, and rows in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.jobs.job import Job
from airflow.models import import_all_models
from airflow.models.asset import AssetActive, AssetModel, AssetWatcherModel, DagScheduleAssetReference
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.trigger import Trigger
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.serialization.definitions.dag import SerializedDAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.triggers.base import BaseEventTrigger
from sqlalchemy import create_engine, delete, event, select, text
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_sharedstream.stream.roster import Roster
from airflow_provider_sharedstream.supervisor.scope import Scope
from airflow_provider_sharedstream.supervisor.watch import CohortWatch

SQS = "airflow_provider_sharedstream.triggers.sqs.SqsSharedStreamTrigger"


class Tables:
    """The tables.

    :param address: of an empty database.
    """

    def __init__(self, address: str) -> None:
        import_all_models()
        self.engine = create_engine(address)
        Base.metadata.create_all(self.engine)
        self.sessions = sessionmaker(self.engine)
        self.statements: list[str] = []
        event.listen(self.engine, "before_cursor_execute", self._note)

    def _note(self, connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        self.statements.append(statement)

    def clear(self) -> None:
        """Remove all rows."""
        names = ", ".join(f'"{table.name}"' for table in Base.metadata.sorted_tables)
        with self.session() as session:
            session.execute(text(f"TRUNCATE {names} RESTART IDENTITY CASCADE"))
        self.statements.clear()

    @contextmanager
    def session(self) -> Iterator[Session]:
        with self.sessions() as session:
            yield session
            session.commit()

    def job(self, *, seconds_ago: float = 0.0, ended: bool = False, kind: str = "TriggererJob") -> int:
        """A job; return its id."""
        beat = datetime.now(timezone.utc) - timedelta(seconds=seconds_ago)
        with self.session() as session:
            job = Job()
            job.job_type = kind
            job.latest_heartbeat = beat
            job.end_date = beat if ended else None
            session.add(job)
            session.flush()
            return int(job.id)

    def parse(self, name: str, *triggers: BaseEventTrigger) -> None:
        """Store a Dag as Airflow's Dag processor does when it has parsed the file: one asset, a watcher a trigger."""
        watchers = [AssetWatcher(name=f"w{number}", trigger=trigger) for number, trigger in enumerate(triggers)]
        dag = DAG(name, schedule=Asset(name, watchers=watchers))
        dag.relative_fileloc = f"{name}.py"
        lazy = LazyDeserializedDAG.from_dag(dag)
        with self.session() as session:
            if session.scalar(select(DagBundleModel)) is None:
                session.add(DagBundleModel(name="bundle"))
                session.flush()
            SerializedDAG.bulk_write_to_db("bundle", None, [lazy], session=session)
            SerializedDagModel.write_dag(lazy, bundle_name="bundle", session=session)
            session.execute(text("UPDATE dag SET is_paused = false"))

    def asset(self, name: str, *, paused: bool = False, stale: bool = False, active: bool = True) -> int:
        """An asset with a Dag of the same name; return its id."""
        with self.session() as session:
            if session.scalar(select(DagBundleModel)) is None:
                session.add(DagBundleModel(name="bundle"))
                session.flush()
            asset = AssetModel(name=name, uri=name)
            dag = DagModel(dag_id=name, bundle_name="bundle", is_paused=paused, is_stale=stale)
            dag.last_parsed_time = datetime.now(timezone.utc)
            session.add_all([asset, dag])
            session.flush()
            if active:
                session.add(AssetActive.for_asset(asset))
            session.add(DagScheduleAssetReference(asset_id=asset.id, dag_id=name))
            return int(asset.id)

    def trigger(
        self,
        *asset_ids: int,
        owner: int | None = None,
        classpath: str = SQS,
        queue: str | None = None,
        **arguments: Any,
    ) -> int:
        """A trigger that watches for assets; return its id."""
        with self.session() as session:
            trigger = Trigger(classpath, arguments or {"sqs_queue": "orders"}, queue=queue)
            trigger.triggerer_id = owner
            session.add(trigger)
            session.flush()
            for asset_id in asset_ids:
                session.add(AssetWatcherModel(name="w", asset_id=asset_id, trigger_id=trigger.id))
            return int(trigger.id)

    def delete(self, trigger_id: int) -> None:
        with self.session() as session:
            session.execute(delete(Trigger).where(Trigger.id == trigger_id))

    def owners(self) -> dict[int, int | None]:
        with self.session() as session:
            return {row.id: row.triggerer_id for row in session.execute(select(Trigger.id, Trigger.triggerer_id))}


def keeper(database: Tables, job: int, folder: Path, *, scope: Scope | None = None) -> CohortWatch:
    """What a triggerer's thread keeps."""
    return CohortWatch(
        job, folder / f"roster-{job}.json", departure_grace_seconds=60, dead_after_seconds=30, scope=scope
    )


def step(database: Tables, watch: CohortWatch) -> Roster:
    """What it does once a second; return what it wrote."""
    with database.session() as session:
        watch.step(session)
    return Roster.from_json(watch.path.read_text())

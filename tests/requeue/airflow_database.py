"""Airflow's database, and in this process what its Dag processor, triggerer and scheduler do to it.

They are Airflow's own functions, called in the order that a test chooses.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any

import sqlalchemy
from airflow import settings
from airflow.sdk import DAG, Asset, AssetWatcher, task
from airflow.triggers.base import TriggerEvent
from sqlalchemy import delete, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from airflow_provider_sharedstream.messages.payload import MessagesEvent
from airflow_provider_sharedstream.supervisor.requeue import Requeue
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

BUNDLE = "tests"
ADDRESS = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"
ASYNC_ADDRESS = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC"


def watched(name: str) -> Asset:
    """An asset with a watcher of ours."""
    return Asset(name, watchers=[AssetWatcher(name=f"{name}_watcher", trigger=SqsSharedStreamTrigger(name))])


class AirflowDatabase:
    """A migrated database.

    :param engine: of this process's Airflow.
    """

    def __init__(self, engine: sqlalchemy.Engine) -> None:
        self.engine = engine
        self.sessions = sessionmaker(engine, autoflush=False, expire_on_commit=False)
        self._scheduler: Any = None
        with self.sessions.begin() as session:
            from airflow.models.dagbundle import DagBundleModel

            session.add(DagBundleModel(name=BUNDLE))

    @property
    def dialect(self) -> str:
        return self.engine.dialect.name

    def clear(self) -> None:
        """Remove what a test has left."""
        from airflow.models.asset import AssetAliasModel, AssetDagRunQueue, AssetEvent, AssetModel, association_table
        from airflow.models.dag import DagModel
        from airflow.models.dag_version import DagVersion
        from airflow.models.dagrun import DagRun
        from airflow.models.log import Log
        from airflow.models.serialized_dag import SerializedDagModel
        from airflow.models.taskinstance import TaskInstance
        from airflow.models.trigger import Trigger

        with self.sessions.begin() as session:
            session.execute(delete(association_table))
            for model in (AssetDagRunQueue, TaskInstance, DagRun, SerializedDagModel, DagVersion, AssetEvent, Log):
                session.execute(delete(model))
            for model in (DagModel, AssetModel, AssetAliasModel, Trigger):
                session.execute(delete(model))

    # The Dag processor.

    def parse(self, dag_id: str, schedule: Any, *, paused: bool = False, **arguments: Any) -> None:
        """Store a Dag as a parse of its file does."""
        from airflow.dag_processing.collection import update_dag_parsing_results_in_db
        from airflow.serialization.serialized_objects import DagSerialization, LazyDeserializedDAG

        with DAG(dag_id, schedule=schedule, is_paused_upon_creation=paused, **arguments) as dag:

            @task
            def handle() -> None: ...

            handle()
        dag.fileloc = __file__
        dag.relative_fileloc = f"{dag_id}.py"
        serialized = LazyDeserializedDAG(data=DagSerialization.to_dict(dag))
        errors: dict[tuple[str, str], str] = {}
        with self.sessions() as session:
            update_dag_parsing_results_in_db(BUNDLE, None, [serialized], errors, None, set(), session)
            session.commit()
        assert not errors, errors

    def vanish(self, dag_id: str) -> None:
        """Do what happens when a Dag's file is gone."""
        from airflow.models.asset import remove_references_to_deleted_dags

        self.change(dag_id, is_stale=True)
        with self.sessions.begin() as session:
            remove_references_to_deleted_dags(session)

    def change(self, dag_id: str, **values: Any) -> None:
        """Change columns of a Dag: `is_paused`, `is_stale`."""
        from airflow.models.dag import DagModel

        with self.sessions.begin() as session:
            session.execute(update(DagModel).where(DagModel.dag_id == dag_id).values(**values))

    # The triggerer.

    def event(self, asset: str, number: int = 0, *, session: Session | None = None) -> int:
        """Store an event of the asset's watcher; return its id. With a session: it isn't committed."""
        from airflow.models.asset import AssetEvent, AssetModel, AssetWatcherModel
        from airflow.models.trigger import Trigger

        if session is None:
            with self.sessions.begin() as own:
                return self.event(asset, number, session=own)
        trigger_id = session.scalar(
            select(AssetWatcherModel.trigger_id)
            .join(AssetModel, AssetModel.id == AssetWatcherModel.asset_id)
            .where(AssetModel.name == asset)
        )
        assert trigger_id is not None, f"{asset} has no watcher"
        payload = {"source": "sqs", "stream": asset, "messages": [{"id": str(number), "body": number}]}
        event: TriggerEvent = MessagesEvent(payload=payload)
        Trigger.submit_event(trigger_id, event, session=session)
        session.flush()
        return int(session.scalar(select(sqlalchemy.func.max(AssetEvent.id))) or 0)

    def burst(self, asset: str, number: int) -> list[int]:
        return [self.event(asset, one) for one in range(number)]

    # The scheduler.

    @property
    def scheduler(self) -> Any:
        from airflow.executors.local_executor import LocalExecutor
        from airflow.jobs.job import Job
        from airflow.jobs.scheduler_job_runner import SchedulerJobRunner

        if self._scheduler is None:
            self._scheduler = SchedulerJobRunner(job=Job(), executors=[LocalExecutor()])
            self._scheduler.job.id = 1
        return self._scheduler

    def schedule(self) -> None:
        """Do what a scheduler's loop does for Dags that need runs."""
        from airflow.utils.sqlalchemy import prohibit_commit

        with self.sessions() as session, prohibit_commit(session) as guard:
            self.scheduler._create_dagruns_for_dags(guard, session)

    # The operator.

    def finish_runs(self) -> None:
        """Let all runs have succeeded."""
        from airflow.models.dagrun import DagRun

        with self.sessions.begin() as session:
            session.execute(update(DagRun).values(_state="success"))

    def rename(self, table: str, to: str) -> None:
        with self.sessions.begin() as session:
            session.execute(text(f"ALTER TABLE {table} RENAME TO {to}"))

    # What there is.

    def asset_ids(self) -> set[int]:
        """The assets that triggers of ours watch for."""
        from airflow.models.asset import AssetWatcherModel

        with self.sessions() as session:
            return set(session.scalars(select(AssetWatcherModel.asset_id)))

    def asset_id(self, name: str) -> int:
        from airflow.models.asset import AssetModel

        with self.sessions() as session:
            return session.scalars(select(AssetModel.id).where(AssetModel.name == name)).one()

    def runs(self, dag_id: str) -> list[list[int]]:
        """Ids of the events that each event-driven run took, run by run."""
        from airflow.models.asset import association_table
        from airflow.models.dagrun import DagRun

        with self.sessions() as session:
            runs = session.scalars(
                select(DagRun.id)
                .where(DagRun.dag_id == dag_id, DagRun.run_type == "asset_triggered")
                .order_by(DagRun.id)
            )
            return [
                sorted(
                    session.scalars(
                        select(association_table.c.event_id).where(association_table.c.dag_run_id == run_id)
                    )
                )
                for run_id in runs
            ]

    def taken(self, dag_id: str) -> list[int]:
        """Ids of the events in runs, each as often as it is in one."""
        return sorted(event for run in self.runs(dag_id) for event in run)

    def queued(self) -> set[tuple[str, int]]:
        """Dags and assets that have a row in the scheduler's queue."""
        from airflow.models.asset import AssetDagRunQueue

        with self.sessions() as session:
            rows = session.execute(select(AssetDagRunQueue.target_dag_id, AssetDagRunQueue.asset_id))
            return {(row.target_dag_id, row.asset_id) for row in rows}

    def sweep(self, requeue: Requeue | None = None) -> int:
        """Sweep once, with one that has just started unless it is given."""
        with self.sessions() as session:
            return (requeue or Requeue()).sweep(session, self.asset_ids())


@contextmanager
def airflow_database(address: str) -> Iterator[AirflowDatabase]:
    """Make `address` the database of this process's Airflow, and make its tables."""
    before = {name: os.environ.get(name) for name in (ADDRESS, ASYNC_ADDRESS)}
    os.environ[ADDRESS] = address
    os.environ[ASYNC_ADDRESS] = ""
    try:
        _configure()
        from airflow.utils.db import initdb

        assert settings.NonScopedSession is not None
        assert settings.engine is not None
        with settings.NonScopedSession() as session:
            initdb(session=session)
            session.commit()
        yield AirflowDatabase(settings.engine)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _configure()


def _configure() -> None:
    settings.configure_vars()
    settings.reconfigure_orm()
    if str(settings.SQL_ALCHEMY_CONN).startswith("mysql"):
        # `settings.configure_adapters` asks for mysqlclient, which has to be compiled; this is what it does else.
        import pymysql.converters
        from pendulum import DateTime

        pymysql.converters.conversions[DateTime] = pymysql.converters.escape_datetime
    else:
        settings.configure_adapters()


def now() -> datetime:
    return datetime.now(timezone.utc)

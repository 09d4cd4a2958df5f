"""All access to Airflow's models, with ``dag_tables``; checked against 3.3.0, 3.3.1 and 3.3.2.

If one of them is not what these modules take it for, :func:`check` says so and triggerers do without a cohort.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

CHECKED = "3.3.0 to 3.3.2"

USED: Mapping[str, tuple[str, ...]] = {
    "airflow.models.trigger.Trigger": (
        "id",
        "classpath",
        "encrypted_kwargs",
        "triggerer_id",
        "queue",
        "team_name",
        "_decrypt_kwargs",
    ),
    "airflow.models.asset.AssetWatcherModel": ("asset_id", "trigger_id", "name"),
    "airflow.models.asset.AssetModel": ("id", "name", "active"),
    "airflow.models.asset.DagScheduleAssetReference": ("asset_id", "dag_id"),
    "airflow.models.dag.DagModel": ("dag_id", "is_stale", "is_paused", "has_import_errors", "last_parsed_time"),
    "airflow.models.serialized_dag.SerializedDagModel": ("get_latest_serialized_dags", "data"),
    "airflow.jobs.job.Job": ("id", "job_type", "end_date", "latest_heartbeat"),
    "airflow.jobs.triggerer_job_runner": ("TriggererJobRunner",),
    "airflow.serialization.decoders": ("smart_decode_trigger_kwargs",),
    "airflow.utils.session": ("create_session",),
    "airflow.utils.sqlalchemy": ("with_row_locks",),
}
"""Modules and classes, and what of them is used."""


class TablesChanged(Exception):
    """This Airflow's models are not those that this module knows."""


class Link(NamedTuple):
    """What a trigger watches for.

    :param asset_id: the asset.
    :param watcher: the watcher's name.
    """

    asset_id: int
    watcher: str


class WatcherRow(NamedTuple):
    """A trigger that watches for assets.

    :param trigger_id: the row.
    :param classpath: its class.
    :param triggerer_id: the triggerer job that it is assigned to, if any.
    :param alive: whether that one lives, in the eyes of Airflow.
    :param team: Airflow's team, if any.
    :param queue: the triggerer queue, if any.
    :param links: what it watches for.
    :param name: assets and watchers, for logs.
    """

    trigger_id: int
    classpath: str
    triggerer_id: int | None
    alive: bool
    team: str | None
    queue: str | None
    links: frozenset[Link]
    name: str


def check() -> None:
    """Make sure that everything used is in this Airflow.

    :raises TablesChanged: something isn't.
    """
    for path, names in USED.items():
        found = _load(path)
        for name in names:
            if not hasattr(found, name):
                raise TablesChanged(f"{path} has no {name}")


def check_database(session: Session) -> None:
    """Make sure that the tables have the columns that are used. A few queries.

    The database itself is asked, since drivers disagree on what kind of error a missing column is.

    :raises TablesChanged: one hasn't.
    """
    from sqlalchemy import inspect
    from sqlalchemy.exc import NoSuchTableError

    database = inspect(session.connection())
    for path, names in USED.items():
        model = _load(path)
        if (table := getattr(model, "__table__", None)) is None:
            continue
        try:
            there = {column["name"] for column in database.get_columns(table.name, schema=table.schema)}
        except NoSuchTableError as error:
            raise TablesChanged(f"the database has no table {table.name}") from error
        attributes = inspect(model).column_attrs
        for column in (attributes[name].columns[0].name for name in names if name in attributes):
            if column not in there:
                raise TablesChanged(f"the table {table.name} has no column {column}")


def _load(path: str) -> Any:
    module, _, last = path.rpartition(".")
    try:
        # The last part is a class, or a module too.
        return getattr(import_module(module), last) if last[0].isupper() else import_module(path)
    except (ImportError, AttributeError) as error:
        raise TablesChanged(f"there is no {path} ({error})") from error


def is_outage(error: Exception) -> bool:
    """Whether an error means that the database is away or busy, and may be back in a moment."""
    from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, TimeoutError

    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, (OperationalError, InterfaceError, InternalError, TimeoutError))


def is_refusal(error: Exception) -> bool:
    """Whether the database was there and did not do what it was asked."""
    from sqlalchemy.exc import DBAPIError

    # What fails while connecting has no statement.
    return isinstance(error, DBAPIError) and error.statement is not None and not error.connection_invalidated


def is_change(error: Exception) -> bool:
    """Whether an error means that models or tables are not what this module takes them for."""
    from sqlalchemy.exc import ArgumentError, CompileError, InvalidRequestError, ProgrammingError

    known = (ArgumentError, AttributeError, CompileError, ImportError, InvalidRequestError, ProgrammingError, TypeError)
    return isinstance(error, known)


def read_watchers(session: Session, dead_after_seconds: float) -> list[WatcherRow]:
    """Return all triggers that watch for assets, this package's or not, by id. One query.

    :param dead_after_seconds: a triggerer whose last heartbeat is older is dead.
    """
    from airflow.jobs.job import Job
    from airflow.models.asset import AssetModel, AssetWatcherModel
    from airflow.models.trigger import Trigger
    from sqlalchemy import select

    found = session.execute(
        select(
            Trigger.id,
            Trigger.classpath,
            Trigger.triggerer_id,
            Trigger.queue,
            Trigger.team_name,
            AssetWatcherModel.asset_id,
            AssetWatcherModel.name,
            AssetModel.name,
            Job.job_type,
            Job.end_date,
            Job.latest_heartbeat,
        )
        .join(AssetWatcherModel, AssetWatcherModel.trigger_id == Trigger.id)
        .join(AssetModel, AssetModel.id == AssetWatcherModel.asset_id)
        .outerjoin(Job, Job.id == Trigger.triggerer_id)
        .order_by(Trigger.id)
    )
    oldest = datetime.now(timezone.utc) - timedelta(seconds=dead_after_seconds)
    rows: dict[int, WatcherRow] = {}
    for number, classpath, owner, queue, team, asset_id, watcher, asset, job_type, ended, beat in found:
        link = Link(asset_id, watcher)
        name = f"{asset}/{watcher}"
        if (known := rows.get(number)) is not None:
            rows[number] = known._replace(links=known.links | {link}, name=f"{known.name}, {name}")
            continue
        alive = job_type == "TriggererJob" and ended is None and beat is not None and beat > oldest
        rows[number] = WatcherRow(number, classpath, owner, alive, _scoped(team), queue, frozenset({link}), name)
    return list(rows.values())


def _scoped(team: str | None) -> str | None:
    """A team stored while teams were in use means nothing when they aren't any more, as in Airflow."""
    from airflow.configuration import conf

    return team if conf.getboolean("core", "multi_team", fallback=False) else None


def read_arguments(session: Session, trigger_ids: Iterable[int]) -> dict[int, Mapping[str, Any] | Exception]:
    """Return the arguments of triggers as their constructors get them; an exception where they can't be read."""
    from airflow.models.trigger import Trigger
    from sqlalchemy import select

    query = select(Trigger.id, Trigger.encrypted_kwargs).where(Trigger.id.in_(list(trigger_ids)))
    found: dict[int, Mapping[str, Any] | Exception] = {}
    for number, encrypted in session.execute(query):
        try:
            found[number] = decode_arguments(Trigger._decrypt_kwargs(encrypted))
        except Exception as error:
            found[number] = error
    return found


def decode_arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a trigger's arguments as its constructor gets them.

    :param arguments: as they are stored, decrypted.
    """
    from airflow.serialization.decoders import smart_decode_trigger_kwargs

    return {name: smart_decode_trigger_kwargs(value) for name, value in arguments.items()}


def lock_owners(session: Session, trigger_ids: Iterable[int]) -> dict[int, int | None]:
    """Lock triggers until the transaction ends, in the order of their ids; return whom they belong to.

    What somebody else has locked is left out: Airflow at assigning, or another triggerer at this.
    """
    from airflow.models.trigger import Trigger
    from airflow.utils.sqlalchemy import with_row_locks
    from sqlalchemy import select

    query = select(Trigger.id, Trigger.triggerer_id).where(Trigger.id.in_(list(trigger_ids))).order_by(Trigger.id)
    found = session.execute(with_row_locks(query, session, skip_locked=True))
    return {row.id: row.triggerer_id for row in found}


def assign(session: Session, trigger_ids: Iterable[int], triggerer_id: int) -> None:
    """Give triggers to a triggerer. Airflow does the rest: one cancels them, the other starts them."""
    from airflow.models.trigger import Trigger
    from sqlalchemy import update

    session.execute(
        update(Trigger)
        .where(Trigger.id.in_(list(trigger_ids)))
        .values(triggerer_id=triggerer_id)
        .execution_options(synchronize_session=False)
    )

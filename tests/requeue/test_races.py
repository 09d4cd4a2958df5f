"""Several schedulers, several sweepers and several triggerers on one database."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from airflow.models.asset import AssetDagRunQueue, AssetEvent, DagScheduleAssetReference
from airflow.models.dag import DagModel
from sqlalchemy import delete, event, select, update
from sqlalchemy.exc import OperationalError

from airflow_provider_sharedstream.supervisor import requeue_changes, requeue_tables
from airflow_provider_sharedstream.supervisor.requeue import Requeue
from airflow_provider_sharedstream.supervisor.requeue_tables import Pair
from tests.requeue.airflow_database import AirflowDatabase, now, watched


class Actors:
    """Threads that go on until they are told to stop; a database that is locked for a moment is tried again."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []
        self.turns: Counter[str] = Counter()

    def start(
        self, name: str, turn: Callable[[], Any], *, turns: int | None = None, pause_seconds: float = 0.0
    ) -> None:
        def act() -> None:
            while not self._stop.is_set() and (turns is None or self.turns[name] < turns):
                try:
                    turn()
                    self.turns[name] += 1
                except OperationalError:
                    time.sleep(0.01)
                except BaseException as error:
                    self.failures.append(error)
                    return
                time.sleep(pause_seconds)

        self._threads.append(threading.Thread(target=act, name=name))
        self._threads[-1].start()

    def join(self, names: str) -> None:
        for thread in self._threads:
            if thread.name.startswith(names):
                thread.join()

    def stop(self) -> None:
        self._stop.set()
        self.join("")


def another_scheduler(database: AirflowDatabase) -> AirflowDatabase:
    """The same database, with a scheduler of its own."""
    other = object.__new__(AirflowDatabase)
    other.__dict__.update(database.__dict__, _scheduler=None)
    assert other.scheduler is not database.scheduler
    return other


@pytest.mark.parametrize("schedule", ["either", "each"])
def test_everybody_at_once(database: AirflowDatabase, schedule: str) -> None:
    """Every event is in a run. Where one triggerer stores a Dag's events, each is in one run only."""
    number = 60
    if schedule == "either":
        database.parse("d", watched("a") | watched("b"), max_active_runs=1000)
    else:
        database.parse("d", [watched("a")], max_active_runs=1000)
        database.parse("e", [watched("b")], max_active_runs=1000)
    assets = database.asset_ids()
    database.sweep()
    # SQLite has one writer, and Airflow runs one scheduler on it.
    many = 1 if database.dialect == "sqlite" else 2
    actors = Actors()
    for one in range(many):
        scheduler = another_scheduler(database)
        actors.start(f"scheduler {one}", scheduler.schedule, pause_seconds=0.05)
        requeue = Requeue()

        def sweep(requeue: Requeue = requeue) -> None:
            requeue._late_at = float("-inf")  # it looks for late events each time
            with database.sessions() as session:
                requeue.sweep(session, assets)

        actors.start(f"sweeper {one}", sweep, pause_seconds=0.02)
    for asset in ("a", "b"):
        actors.start(f"triggerer {asset}", partial(database.event, asset), turns=number)
    actors.join("triggerer")
    actors.stop()
    assert actors.failures == []
    assert min(actors.turns.values()) > 3, actors.turns

    requeue = Requeue()
    for _ in range(20):
        # Late events are looked for every few seconds.
        requeue._late_at = float("-inf")
        database.schedule()
        if not database.sweep(requeue) and not database.queued():
            break
    events = Counter(database.taken("d") + database.taken("e"))
    assert len(events) == 2 * number
    if schedule == "each":
        assert set(events.values()) == {1}


def test_a_scheduler_that_makes_runs_meanwhile(database: AirflowDatabase) -> None:
    """What was seen before the lock has been taken by a run: it isn't queued again."""
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    database.schedule()
    seen = requeue_tables.find_newest

    def then_a_run(session: Any, *args: Any, **arguments: Any) -> Any:
        found = seen(session, *args, **arguments)
        if not arguments:
            session.commit()
            database.event("a")
            database.schedule()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requeue_tables, "find_newest", then_a_run)
        assert database.sweep() == 0
    assert database.queued() == set()
    assert Counter(database.taken("d")).most_common(1)[0][1] == 1


def test_a_run_that_is_made_between_two_questions(database: AirflowDatabase) -> None:
    """What it takes isn't late."""
    database.parse("d", [watched("a")])
    database.event("a")
    seen = requeue_tables.find_untaken

    def then_a_run(session: Any, *args: Any) -> Any:
        found = seen(session, *args)
        session.commit()
        database.schedule()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requeue_tables, "find_untaken", then_a_run)
        assert database.sweep() == 0
    database.schedule()
    assert len(database.taken("d")) == 1


@pytest.mark.parametrize("whole_database", ["postgresql", "mysql"], indirect=True)
def test_a_dag_that_a_scheduler_has_locked(database: AirflowDatabase) -> None:
    """It is left to the next sweep, and not waited for. (SQLite locks no rows.)"""
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    database.schedule()
    with database.sessions() as session:
        session.execute(select(DagModel).where(DagModel.dag_id == "d").with_for_update())
        began = time.monotonic()
        assert database.sweep() == 0
        assert time.monotonic() - began < 30
    assert database.sweep() == 1


def test_two_that_queue_the_same(database: AirflowDatabase) -> None:
    """The second finds the row and leaves it; its transaction goes on."""
    database.parse("d", [watched("a")])
    pair = Pair(database.asset_id("a"), "d")
    with database.sessions() as session:
        assert requeue_changes.queue(session, pair, now())
        session.commit()
        assert not requeue_changes.queue(session, pair, now())
        assert session.scalar(select(DagModel.dag_id)) == "d"


def test_a_sweep_that_fails_leaves_nothing_behind(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    database.schedule()
    requeue = Requeue()
    with pytest.MonkeyPatch.context() as patch:

        def fail(*args: Any) -> None:
            raise OperationalError("queue", {}, Exception("the database is away"))

        patch.setattr(requeue_changes, "queue", fail)
        with pytest.raises(OperationalError):
            database.sweep(requeue)
    assert database.queued() == set()
    assert database.sweep(requeue) == 1


@pytest.mark.parametrize("whole_database", ["sqlite"], indirect=True)
@pytest.mark.parametrize("kind", ["stranded", "late"])
def test_on_sqlite_nothing_is_read_while_others_wait_to_write(database: AirflowDatabase, kind: str) -> None:
    """It has one writer at a time, and a triggerer ends that waited five seconds for its turn."""
    database.parse("d", watched("a") | watched("b"))
    database.burst("b", 3)
    database.schedule()
    if kind == "late":
        database.burst("a", 3)
        moment = now() - timedelta(seconds=10)
        with database.sessions.begin() as session:
            session.execute(delete(AssetDagRunQueue))
            session.execute(update(DagScheduleAssetReference).values(created_at=moment - timedelta(seconds=60)))
            here = AssetEvent.asset_id == database.asset_id("a")
            session.execute(update(AssetEvent).where(here).values(timestamp=moment))
    done: list[str] = []

    def note_statement(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        done.append(statement.split()[0])

    def note_commit(connection: Any) -> None:
        done.append("COMMIT")

    event.listen(database.engine, "before_cursor_execute", note_statement)
    event.listen(database.engine, "commit", note_commit)
    try:
        assert database.sweep() > 0
    finally:
        event.remove(database.engine, "before_cursor_execute", note_statement)
        event.remove(database.engine, "commit", note_commit)
    writes = [place for place, word in enumerate(done) if word in ("INSERT", "UPDATE")]
    assert writes
    for place in writes:
        assert done[place + 1] in ("COMMIT", done[place]), done

"""What is read from Airflow's tables and written to them, on PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_provider_sharedstream.stream.roster import Roster
from airflow_provider_sharedstream.supervisor import dag_tables, tables
from airflow_provider_sharedstream.supervisor.tables import Link
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.cohort.database import Tables, keeper, step

STREAM = SqsSharedStreamTrigger("orders").stream_identity().stream


def test_everything_used_is_there(database: Tables) -> None:
    tables.check()
    with database.session() as session:
        tables.check_database(session)


def test_watchers_are_read(database: Tables) -> None:
    alive, ended, dead, other = (
        database.job(),
        database.job(ended=True),
        database.job(seconds_ago=31),
        database.job(kind="SchedulerJob"),
    )
    first, second = database.asset("first"), database.asset("second")
    numbers = [
        database.trigger(first, second, owner=alive),
        database.trigger(first, owner=ended),
        database.trigger(first, owner=dead),
        database.trigger(first, owner=other),
        database.trigger(first, owner=12345),
        database.trigger(first, queue="q"),
    ]
    database.trigger()  # a deferred task's
    with database.session() as session:
        rows = tables.read_watchers(session, 30.0)
    assert [row.trigger_id for row in rows] == numbers
    assert [row.alive for row in rows] == [True, False, False, False, False, False]
    assert [row.triggerer_id for row in rows] == [alive, ended, dead, other, 12345, None]
    assert rows[0].links == {Link(first, "w"), Link(second, "w")}
    assert rows[0].name == "first/w, second/w"
    assert rows[5].queue == "q"


def test_a_dag_counts_as_airflow_counts_it(database: Tables) -> None:
    assets = {
        "active": database.asset("active"),
        "paused": database.asset("paused", paused=True),
        "stale": database.asset("stale", stale=True),
        "orphan": database.asset("orphan", active=False),
    }
    with database.session() as session:
        dags = dag_tables.read_dags(session, assets.values())
        assert dags == {asset: frozenset({name}) for name, asset in assets.items()}
        assert set(dag_tables.read_watched_assets(session, dags)) == {assets["active"]}


@pytest.mark.parametrize("forgotten", [False, True])
def test_a_dag_whose_file_is_broken_counts_although_airflow_takes_it_for_stale(
    forgotten: bool, database: Tables
) -> None:
    broken, paused = database.asset("broken"), database.asset("paused", paused=True)
    with database.session() as session:
        dags = dag_tables.read_dags(session, [broken, paused])
        session.execute(text("UPDATE dag SET is_stale = true, has_import_errors = true"))
        if forgotten:
            session.execute(text("DELETE FROM dag_schedule_asset_reference"))
        assert set(dag_tables.read_watched_assets(session, dags)) == {broken}


def test_a_quiet_second_costs_one_query(database: Tables, tmp_path: Path) -> None:
    job = database.job()
    for number in range(300):
        database.trigger(database.asset(f"asset{number}"), owner=job, sqs_queue=f"queue{number % 30}")
    with database.session() as session:
        session.execute(text("ANALYZE"))
    watch = keeper(database, job, tmp_path)
    step(database, watch)
    database.statements.clear()
    began = time.process_time()
    for _ in range(10):
        step(database, watch)
    used = (time.process_time() - began) / 10
    assert len(database.statements) == 10
    assert all(statement.startswith("SELECT") for statement in database.statements)
    with database.session() as session:
        plan = session.execute(text(f"EXPLAIN (ANALYZE, TIMING OFF) {_plain(database.statements[0])}")).scalars().all()
    print(f"300 watchers: {used * 1000:.1f} ms of processor time a second; {plan[-1]}")
    assert used < 0.5, "more than a share of the second"


def test_an_airflow_without_triggers_of_ours_is_asked_one_query_in_five_seconds(
    database: Tables, tmp_path: Path
) -> None:
    job = database.job()
    database.trigger()
    database.trigger(database.asset("strange"), owner=job, classpath="other.Trigger", a=1)
    watch = keeper(database, job, tmp_path)
    for _ in range(2):
        step(database, watch)
    database.statements.clear()
    pauses = []
    with database.session() as session:
        pauses += [watch.step(session) for _ in range(10)]
    assert len(database.statements) == 10
    assert all(statement.startswith("SELECT") for statement in database.statements)
    assert set(pauses) == {5.0}
    assert Roster.from_json(watch.path.read_text()).streams == {}


def _plain(statement: str) -> str:
    assert "%(" not in statement, "no parameters"
    return statement


def test_a_step_gathers_and_lists(database: Tables, tmp_path: Path) -> None:
    one, two = database.job(), database.job()
    assets = [database.asset(f"asset{number}") for number in range(3)]
    numbers = [
        database.trigger(assets[0], owner=one),
        database.trigger(assets[1], owner=two),
        database.trigger(assets[2]),
    ]
    watch = keeper(database, two, tmp_path)
    stream = step(database, watch).streams[STREAM]
    assert stream.owner == one
    assert list(stream.members) == numbers
    assert database.owners() == dict.fromkeys(numbers, one)
    # What is not ours is not on it, and left alone.
    foreign = database.trigger(assets[0], owner=two, classpath="somebody.elses.Trigger")
    assert list(step(database, watch).streams[STREAM].members) == numbers
    assert database.owners()[foreign] == two


def test_arguments_are_read_once(database: Tables, tmp_path: Path) -> None:
    job = database.job()
    asset = database.asset("asset")
    watch = keeper(database, job, tmp_path)
    step(database, watch)
    for _ in range(3):
        database.trigger(asset, owner=job)
        database.statements.clear()
        step(database, watch)
        assert sum("kwargs" in statement for statement in database.statements) == 1
        step(database, watch)
        assert sum("kwargs" in statement for statement in database.statements) == 1


def test_a_departure_is_listed_and_ends(database: Tables, tmp_path: Path) -> None:
    job = database.job()
    going, staying = database.asset("going"), database.asset("staying")
    old = database.trigger(going, owner=job)
    database.trigger(staying, owner=job)
    watch = keeper(database, job, tmp_path)
    step(database, watch)
    database.delete(old)
    assert set(step(database, watch).streams[STREAM].departed) == {old}
    new = database.trigger(going, owner=job)
    stream = step(database, watch).streams[STREAM]
    assert not stream.departed
    assert new in stream.members


def test_airflow_takes_two_parses_to_change_a_trigger(database: Tables, tmp_path: Path) -> None:
    """What all of the waiting for departed watchers is for."""
    job = database.job()
    watch = keeper(database, job, tmp_path)
    for _ in range(3):
        database.parse("orders", SqsSharedStreamTrigger("orders"))
    (old,) = step(database, watch).streams[STREAM].members
    counts = []
    for _ in range(3):
        database.parse("orders", SqsSharedStreamTrigger("orders", match="body.a"))
        stream = step(database, watch).streams[STREAM]
        counts.append((list(stream.members), list(stream.departed)))
    (gone, come, stays) = counts
    assert gone == ([], [old])
    assert come == stays
    assert come[1] == []
    assert come[0] != [old]


def test_a_watcher_that_is_declared_and_has_no_trigger_yet_is_waited_for_from_the_start(
    database: Tables, tmp_path: Path
) -> None:
    job = database.job()
    for name in ("one", "two"):
        for _ in range(3):
            database.parse(name, SqsSharedStreamTrigger("orders"))
    database.parse("two", SqsSharedStreamTrigger("orders", match="body.a"))
    watch = keeper(database, job, tmp_path)
    stream = step(database, watch).streams[STREAM]
    assert len(stream.members) == 1
    assert [departed.name for departed in stream.departed.values()] == ["two/w0"]
    database.parse("two", SqsSharedStreamTrigger("orders", match="body.a"))
    stream = step(database, watch).streams[STREAM]
    assert len(stream.members) == 2
    assert not stream.departed


def test_equal_watchers_of_one_asset_are_one(database: Tables, tmp_path: Path) -> None:
    job = database.job()
    for _ in range(3):
        database.parse("one", SqsSharedStreamTrigger("orders"), SqsSharedStreamTrigger("orders"))
    stream = step(database, keeper(database, job, tmp_path)).streams[STREAM]
    assert len(stream.members) == 1
    assert not stream.departed

"""What is moved, on PostgreSQL, by one triggerer and by several that decide at once."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from sqlalchemy import text

from airflow_provider_sharedstream.supervisor import tables
from airflow_provider_sharedstream.supervisor.ownership import Move
from airflow_provider_sharedstream.supervisor.scope import Scope
from airflow_provider_sharedstream.supervisor.watch import make_move
from services.process import wait_until
from tests.cohort.database import Tables, keeper, step


def test_rows_that_somebody_has_locked_are_left_alone(database: Tables, tmp_path: Path) -> None:
    one, two = database.job(), database.job()
    asset = database.asset("asset")
    numbers = [database.trigger(asset, owner=one), database.trigger(asset, owner=two)]
    watch = keeper(database, one, tmp_path)
    with database.sessions() as other:
        tables.lock_owners(other, numbers[1:])
        step(database, watch)
        assert database.owners() == dict(zip(numbers, (one, two), strict=True))
        other.rollback()
    step(database, watch)
    assert database.owners() == dict.fromkeys(numbers, one)


def test_rows_that_have_changed_since_are_left_alone(database: Tables, tmp_path: Path) -> None:
    one, two = database.job(), database.job()
    asset = database.asset("asset")
    number = database.trigger(asset, owner=two)
    with database.session() as session:
        assert not make_move(session, Move(frozenset({number}), one, {number: None}))
    assert database.owners() == {number: two}
    with database.session() as session:
        assert make_move(session, Move(frozenset({number}), one, {number: two}))
    assert database.owners() == {number: one}


@pytest.mark.parametrize(
    ("scope", "takes"),
    [
        (Scope(None, None), True),
        (Scope(None, frozenset({"q"})), False),
        (Scope("red", None), False),
        (None, False),
    ],
)
def test_a_triggerer_takes_only_what_airflow_would_give_it(
    scope: Scope | None, takes: bool, database: Tables, tmp_path: Path
) -> None:
    rich, poor = database.job(), database.job()
    for number in range(4):
        database.trigger(database.asset(f"asset{number}"), owner=rich, sqs_queue=f"queue{number}")
    watch = keeper(database, poor, tmp_path, scope=scope)
    watch.spread_from = 0.0
    for _ in range(5):
        step(database, watch)
    assert list(database.owners().values()).count(poor) == (2 if takes else 0)


def test_one_that_has_just_started_takes_nothing(database: Tables, tmp_path: Path) -> None:
    rich, poor = database.job(), database.job()
    for number in range(4):
        database.trigger(database.asset(f"asset{number}"), owner=rich, sqs_queue=f"queue{number}")
    watch = keeper(database, poor, tmp_path, scope=Scope(None, None))
    step(database, watch)
    assert list(database.owners().values()).count(poor) == 0


def test_each_takes_what_is_of_its_scope(database: Tables, tmp_path: Path) -> None:
    """Those with a queue spread over the triggerers that serve it, those without over the others."""
    plain, other, special = database.job(), database.job(), database.job()
    queued = {database.trigger(database.asset(f"q{n}"), owner=None, queue="q", sqs_queue=f"q{n}") for n in range(4)}
    free = {database.trigger(database.asset(f"f{n}"), owner=plain, sqs_queue=f"f{n}") for n in range(4)}
    with database.session() as session:
        tables.assign(session, queued, special)
    scopes = {plain: Scope(None, None), other: Scope(None, None), special: Scope(None, frozenset({"q"}))}
    watches = [keeper(database, job, tmp_path, scope=scope) for job, scope in scopes.items()]
    for _ in range(4):
        for watch in watches:
            watch.spread_from = 0.0
            step(database, watch)
    owners = database.owners()
    assert {owners[number] for number in queued} == {special}
    assert Counter(owners[number] for number in free) == {plain: 2, other: 2}


def test_several_at_once_come_to_rest(database: Tables, tmp_path: Path) -> None:
    """Three decide without a pause while somebody tears all apart; then it comes to rest, each source in one place."""
    jobs = [database.job() for _ in range(3)]
    sources = {
        n: [database.trigger(database.asset(f"a{n}-{w}"), sqs_queue=f"q{n}") for w in range(3)] for n in range(9)
    }
    numbers = [number for several in sources.values() for number in several]
    stop = threading.Event()
    failures: list[BaseException] = []

    def decide(job: int) -> None:
        watch = keeper(database, job, tmp_path, scope=Scope(None, None))
        watch.spread_from = 0.0
        try:
            while not stop.is_set():
                step(database, watch)
        except BaseException as error:
            failures.append(error)

    def tear() -> None:
        with database.session() as session:
            for number in random.sample(numbers, 9):
                session.execute(
                    text("UPDATE trigger SET triggerer_id = :owner WHERE id = :id"),
                    {"owner": random.choice(jobs), "id": number},
                )

    def at_rest() -> bool:
        owners = database.owners()
        places = [{owners[number] for number in several} for several in sources.values()]
        one_each = all(len(place) == 1 for place in places)
        return one_each and sorted(Counter(map(frozenset, places)).values()) == [3, 3, 3]

    threads = [threading.Thread(target=decide, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            tear()
            time.sleep(0.05)
        assert wait_until(at_rest, limit_seconds=60)
        time.sleep(1.0)  # for what was decided just before
        assert wait_until(at_rest, limit_seconds=60)
        rest = database.owners()
        time.sleep(1.0)
        assert database.owners() == rest, "nothing moves without need"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []

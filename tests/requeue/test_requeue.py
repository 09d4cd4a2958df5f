"""Events without a run are found and given back, and nothing else is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from airflow.models import asset as asset_models
from airflow.models.asset import AssetDagRunQueue, AssetEvent, DagScheduleAssetReference
from airflow.models.team import Team, dag_bundle_team_association_table
from airflow.sdk import Asset
from airflow.timetables.assets import AssetOrTimeSchedule
from airflow.timetables.trigger import CronTriggerTimetable
from sqlalchemy import Column, Integer, MetaData, String, Table, delete, event, select, update
from sqlalchemy.orm import registry

from airflow_provider_sharedstream.supervisor import requeue as requeue_module
from airflow_provider_sharedstream.supervisor.requeue import Requeue
from tests.requeue.airflow_database import BUNDLE, AirflowDatabase, now, watched

INCR = "airflow_provider_sharedstream.supervisor.requeue.stats.incr"


def strand(database: AirflowDatabase, dag_id: str, asset: str, events: int = 5) -> list[int]:
    """Leave the rest of a burst without a run, as Airflow does; return the ids of the rest."""
    stored = database.burst(asset, events)
    database.schedule()
    rest = sorted(set(stored) - set(database.taken(dag_id)))
    assert 0 < len(rest) < events, "this Airflow strands nothing"
    return rest


def settle(database: AirflowDatabase) -> None:
    """Sweep and schedule until nothing is left to do."""
    requeue = Requeue()
    for _ in range(10):
        done = database.sweep(requeue)
        database.schedule()
        if not done:
            return
    raise AssertionError("it queues for ever")


def test_the_rest_of_a_burst(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    events = database.burst("a", 5)
    database.schedule()
    assert 0 < len(database.taken("d")) < 5, "this Airflow strands nothing"
    assert database.queued() == set()
    database.schedule()
    assert 0 < len(database.taken("d")) < 5, "this Airflow takes them later"

    assert database.sweep() == 1
    database.schedule()
    assert database.taken("d") == events, "each once"
    assert len(database.runs("d")) == 2
    assert database.sweep() == 0
    assert database.queued() == set()


def test_what_is_queued_is_left_alone(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    assert database.sweep() == 0
    database.burst("a", 3)
    before = database.queued()
    assert len(before) == 1
    assert database.sweep() == 0
    assert database.queued() == before


def test_a_dag_at_max_active_runs(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")], max_active_runs=1)
    requeue = Requeue()
    events = strand(database, "d", "a", 4)
    events = [min(events) - 1, *events]
    for _ in range(3):
        database.sweep(requeue)
        events += database.burst("a", 2)
        database.schedule()
        assert len(database.runs("d")) == 1, "it waits"
    for _ in range(3):
        database.finish_runs()
        database.schedule()
        database.sweep(requeue)
    assert database.taken("d") == events, "each once"


def test_several_dags_of_one_asset(database: AirflowDatabase) -> None:
    """Each gets what it misses, and only that one is queued."""
    for dag_id in ("d", "e"):
        database.parse(dag_id, [watched("a")])
    database.burst("a", 2)
    database.change("e", is_stale=True)
    database.schedule()
    database.change("e", is_stale=False)
    assert database.sweep() == 1
    assert {dag for dag, _ in database.queued()} == {"d", "e"}
    database.schedule()
    settle(database)
    assert len(database.taken("d")) == len(database.taken("e")) == 2


def test_both_assets_are_waited_for(database: AirflowDatabase) -> None:
    database.parse("d", watched("a") & watched("b"))
    first = [*database.burst("a", 3), *database.burst("b", 1)]
    database.schedule()
    assert database.taken("d") == first
    waiting = database.burst("a", 1)
    # Stored while the row was still there, as it happens to the end of a burst.
    with database.sessions.begin() as session:
        session.execute(delete(AssetDagRunQueue))
    settle(database)
    assert len(database.runs("d")) == 1, "it ran for one of them alone"
    assert database.queued() == {("d", database.asset_id("a"))}
    other = database.burst("b", 1)
    settle(database)
    assert database.runs("d")[1:] == [[*waiting, *other]]


def test_either_asset_is_enough(database: AirflowDatabase) -> None:
    database.parse("d", watched("a") | watched("b"))
    strand(database, "d", "a")
    database.burst("b", 2)
    settle(database)
    assert len(database.taken("d")) == 7


def test_assets_or_time(database: AirflowDatabase) -> None:
    timetable: Any = CronTriggerTimetable("0 0 * * *", timezone="UTC")
    assets: Any = [watched("a")]
    database.parse("d", AssetOrTimeSchedule(timetable=timetable, assets=assets))
    strand(database, "d", "a")
    settle(database)
    assert len(database.taken("d")) == 5


def test_what_came_while_a_dag_was_paused(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.burst("a", 1)
    database.schedule()
    database.change("d", is_paused=True)
    missed = database.burst("a", 3)
    assert database.sweep() == 0, "it is paused"
    assert database.queued() == set()
    database.change("d", is_paused=False)
    settle(database)
    assert database.runs("d")[1:] == [missed]


def test_what_came_while_a_dag_file_was_away(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.parse("other", [watched("a")])
    database.burst("a", 1)
    database.schedule()
    database.vanish("d")
    missed = database.burst("a", 3)
    settle(database)
    assert len(database.runs("d")) == 1
    database.change("d", is_stale=False)
    database.parse("d", [watched("a")])
    settle(database)
    assert database.runs("d")[1:] == [missed]


def test_a_new_dag_does_not_run_for_old_events(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    database.parse("new", [watched("a")])
    database.parse("moved", [watched("b")])
    database.burst("b", 1)
    settle(database)
    database.parse("moved", watched("a") | watched("b"))
    settle(database)
    assert database.runs("new") == []
    assert len(database.runs("moved")) == 1


@pytest.mark.parametrize("reference", [Asset.ref(name="a"), Asset.ref(uri="a")], ids=["name", "uri"])
def test_a_reference_to_the_asset(database: AirflowDatabase, reference: Any) -> None:
    """Airflow gives such runs no events; one more run after the last event is all there is to give."""
    database.parse("owner", [watched("a")])
    database.parse("d", reference)
    database.burst("a", 3)
    database.schedule()
    assert database.runs("d") == [[]], "this Airflow gives a Dag on a reference its events: say so in the documentation"
    settle(database)
    assert database.runs("d") == [[], []]
    assert len(database.taken("owner")) == 3


def test_an_alias_is_left_alone(database: AirflowDatabase) -> None:
    """Airflow doesn't queue a Dag on an alias for a watcher's events, even where the asset belongs to the alias."""
    from airflow.models.asset import AssetAliasModel, AssetModel
    from airflow.sdk import AssetAlias

    database.parse("owner", [watched("a")])
    database.parse("d", AssetAlias("x"))
    with database.sessions.begin() as session:
        alias = session.query(AssetAliasModel).filter_by(name="x").one()
        alias.assets.append(session.query(AssetModel).filter_by(name="a").one())
    strand(database, "owner", "a")
    settle(database)
    assert database.runs("d") == []
    assert len(database.taken("owner")) == 5


def test_assets_of_others_are_left_alone(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.parse("e", [watched("b")])
    strand(database, "d", "a")
    strand(database, "e", "b")
    with database.sessions() as session:
        assert Requeue().sweep(session, [database.asset_id("a")]) == 1
        assert Requeue().sweep(session, []) == 0
    assert database.queued() == {("d", database.asset_id("a"))}


def late_events(database: AirflowDatabase, asset: str, number: int, *, seconds: float = 10) -> list[int]:
    """Store events as a triggerer whose clock is behind, or whose transaction took so long; without a queue row."""
    stored = database.burst(asset, number)
    moment = now() - timedelta(seconds=seconds)
    with database.sessions.begin() as session:
        session.execute(delete(AssetDagRunQueue))
        session.execute(update(DagScheduleAssetReference).values(created_at=moment - timedelta(seconds=60)))
        for place, one in enumerate(stored):
            timestamp = moment + timedelta(microseconds=number - place)
            session.execute(update(AssetEvent).where(AssetEvent.id == one).values(timestamp=timestamp))
    return stored


def test_events_that_become_visible_late(database: AirflowDatabase) -> None:
    """After the run for their time has been made: no later run would take them."""
    database.parse("d", watched("a") | watched("b"))
    other = database.event("b")
    database.schedule()
    late = late_events(database, "a", 5)
    settle(database)
    assert database.runs("d") == [[other], late]
    with database.sessions() as session:
        query = select(AssetEvent.id).where(AssetEvent.id.in_(late)).order_by(AssetEvent.timestamp)
        assert list(session.scalars(query)) == list(reversed(late)), "they keep their order"


def test_a_late_event_counts_as_such(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr(INCR, lambda name, count, tags: told.append((count, tags["reason"])))
    database.parse("d", watched("a") | watched("b"))
    database.event("b")
    database.schedule()
    late_events(database, "a", 1)
    settle(database)
    assert told == [(1, "late"), (1, "stranded")]


def test_a_late_event_that_others_have_seen(database: AirflowDatabase) -> None:
    """Who has taken it already may see it again: better than that somebody never does."""
    database.parse("d", watched("a") | watched("b"))
    database.parse("e", [watched("a")])
    database.event("b")
    database.schedule()
    late = late_events(database, "a", 1)
    settle(database)
    assert late[0] in database.taken("d")
    assert late[0] in database.taken("e")


def test_both_assets_and_a_late_event(database: AirflowDatabase) -> None:
    """It waits for the other asset's next event, as any other."""
    database.parse("d", watched("a") & watched("b"))
    first = [database.event("a"), database.event("b")]
    database.schedule()
    late = late_events(database, "a", 1)
    settle(database)
    assert database.runs("d") == [first]
    other = database.event("b")
    settle(database)
    assert database.runs("d") == [first, [*late, other]]


def test_a_slow_clock_whose_row_is_still_there(database: AirflowDatabase) -> None:
    """Its own run takes the event: it isn't touched."""
    database.parse("d", watched("a") | watched("b"))
    database.event("b")
    database.schedule()
    (slow,) = late_events(database, "a", 1)
    with database.sessions.begin() as session:
        moment = session.get_one(AssetEvent, slow).timestamp
        row = AssetDagRunQueue(asset_id=database.asset_id("a"), target_dag_id="d", created_at=moment)
        session.add(row)
    assert database.sweep() == 0
    database.schedule()
    assert slow in database.taken("d")
    with database.sessions() as session:
        assert session.get_one(AssetEvent, slow).timestamp == moment


def test_events_of_a_partition_queue_nobody(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.burst("a", 1)
    database.schedule()
    with database.sessions.begin() as session:
        session.add(AssetEvent(asset_id=database.asset_id("a"), extra={}, partition_key="p"))
    assert database.sweep() == 0


def test_old_events_are_left_alone(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `airflow db clean` has removed a Dag's runs, their events look as if no run had ever been."""
    database.parse("d", [watched("a")])
    strand(database, "d", "a")
    monkeypatch.setattr(requeue_module, "OLDEST", timedelta(0))
    assert database.sweep() == 0


def test_it_can_be_switched_off(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.parse("d", [watched("a")])
    strand(database, "d", "a")
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__REQUEUE_STRANDED_EVENTS", "False")
    assert database.sweep() == 0
    monkeypatch.delenv("AIRFLOW__SHAREDSTREAM__REQUEUE_STRANDED_EVENTS")
    assert database.sweep() == 1


def test_it_is_off_where_each_event_has_a_row(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Airflow 3.4."""

    class AssetDagRunQueue:
        pass

    table = Table(
        "asset_dag_run_queue",
        MetaData(),
        Column("target_dag_id", String(250), primary_key=True),
        Column("asset_event_id", Integer, primary_key=True),
        Column("asset_id", Integer),
    )
    registry().map_imperatively(AssetDagRunQueue, table)
    database.parse("d", [watched("a")])
    strand(database, "d", "a")
    with monkeypatch.context() as patch:
        patch.setattr(asset_models, "AssetDagRunQueue", AssetDagRunQueue)
        requeue = Requeue()
    assert not requeue.on
    assert database.sweep(requeue) == 0
    assert Requeue().on


def test_it_says_and_counts_what_it_does(
    database: AirflowDatabase, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(INCR, lambda name, count, tags: told.append((name, count, tags)))
    database.parse("d", [watched("a")])
    rest = strand(database, "d", "a")
    with caplog.at_level(logging.INFO, "airflow_provider_sharedstream"):
        database.sweep()
        database.sweep()
    assert told == [("sharedstream.requeued", len(rest), {"dag_id": "d", "reason": "stranded"})]
    assert [record.getMessage() for record in caplog.records if record.name == requeue_module.__name__] == [
        f"Dag d is queued again for {len(rest)} events of a that no run had taken"
    ]


def test_a_metric_that_fails_stops_nothing(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **arguments: Any) -> None:
        raise RuntimeError("no backend")

    monkeypatch.setattr(INCR, fail)
    database.parse("d", [watched("a")])
    strand(database, "d", "a")
    assert database.sweep() == 1


def test_idle_it_asks_once_a_second(database: AirflowDatabase) -> None:
    """Also where something was judged not to be stranded, and when late events are looked for."""
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    database.parse("new", [watched("a")])
    database.schedule()
    settle(database)
    assert len(database.taken("d")) == 3
    seconds = 1000.0
    requeue = Requeue(clock=lambda: seconds)
    assets = database.asset_ids()
    asked: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        asked.append(statement)

    with database.sessions() as session:
        requeue.sweep(session, assets)
        event.listen(database.engine, "before_cursor_execute", note)
        try:
            for _ in range(30):
                seconds += 1.0
                requeue.sweep(session, assets)
        finally:
            event.remove(database.engine, "before_cursor_execute", note)
    assert len(asked) == 30
    late = sum("asset_dag_run_queue" not in statement for statement in asked)
    assert late == 30 / requeue_module.LATE_EVERY_SECONDS


@pytest.fixture
def teams(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every Dag belongs to one team; triggers belong to none."""
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    with database.sessions.begin() as session:
        session.add(Team(name="team"))
        session.flush()
        session.execute(dag_bundle_team_association_table.insert().values(dag_bundle_name=BUNDLE, team_name="team"))
    yield
    with database.sessions.begin() as session:
        session.execute(delete(dag_bundle_team_association_table))
        session.execute(delete(Team))


@pytest.mark.usefixtures("teams")
def test_a_team_that_wants_no_events_from_outside(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.parse("e", [watched("a")])
    with database.sessions.begin() as session:
        mine = update(DagScheduleAssetReference).where(DagScheduleAssetReference.dag_id == "d")
        session.execute(mine.values(allow_global_producers=False))
    strand(database, "e", "a")
    assert {dag for dag, _ in database.queued()} == set()
    settle(database)
    assert database.runs("d") == []
    assert len(database.taken("e")) == 5


@pytest.mark.usefixtures("teams")
def test_with_teams_a_persons_event_queues_nobody(database: AirflowDatabase) -> None:
    """Whom it may reach depends on the person."""
    database.parse("d", [watched("a")])
    database.burst("a", 1)
    database.schedule()
    with database.sessions.begin() as session:
        session.add(AssetEvent(asset_id=database.asset_id("a"), extra={"from_rest_api": True}))
    assert database.sweep() == 0

"""The thread's loop: which assets are ours, and what it survives."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import BaseEventTrigger
from sqlalchemy.exc import OperationalError, ProgrammingError

from airflow_provider_sharedstream.supervisor import requeue_watch, tables
from airflow_provider_sharedstream.supervisor.requeue import Requeue
from airflow_provider_sharedstream.supervisor.requeue_watch import WatchedAssets, requeue_for_ever, sweep
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.requeue.airflow_database import AirflowDatabase, watched


class UsersOwn(SqsSharedStreamTrigger):
    """A user's subclass of one of ours."""


class Foreign(BaseEventTrigger):
    """Somebody else's."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{__name__}.Foreign", {}

    async def run(self) -> Any:
        yield


def test_which_assets_are_ours(database: AirflowDatabase) -> None:
    triggers: dict[str, Any] = {"a": SqsSharedStreamTrigger("q"), "b": UsersOwn("q"), "c": Foreign()}  # type: ignore[no-untyped-call]
    for name, trigger in triggers.items():
        database.parse(name, [Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])])
    assets = WatchedAssets()
    with database.sessions() as session:
        assert assets.refresh(session)
        assert assets.ids == {database.asset_id("a"), database.asset_id("b")}
        database.parse("d", [watched("d")])
        assert not assets.refresh(session), "it reads them every few seconds only"
        assert len(assets.ids) == 2
        again = WatchedAssets()
        again.refresh(session)
        assert len(again.ids) == 3


def test_a_sweep_with_a_session_of_airflows(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    events = database.burst("a", 3)
    database.schedule()
    assets = WatchedAssets()
    assert sweep(Requeue(), assets) is None, "one query a second: it reads the assets"
    assert sweep(Requeue(), assets) == 1
    database.schedule()
    assert database.taken("d") == events


class Enough(BaseException):
    """Ends what goes on for ever."""


def run(monkeypatch: pytest.MonkeyPatch, *results: BaseException | int) -> list[float]:
    """Run the loop until the results of its sweeps are used up; return how long it waited after each."""
    waited: list[float] = []
    left = list(results)

    def turn(*args: Any) -> int:
        if not left:
            raise Enough
        result = left.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result

    monkeypatch.setattr(requeue_watch, "sweep", turn)
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(Enough):
        requeue_for_ever()
    return waited


def every_other(refresh: Callable[..., bool]) -> Callable[..., bool]:
    turns = itertools.count()
    return lambda assets, session: next(turns) % 2 == 0 and refresh(assets, session)


def test_it_goes_on_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    away = OperationalError("select", {}, Exception("the database is away"))
    waited = run(monkeypatch, 0, *[away] * 20, 1, *[RuntimeError("unforeseen")] * 20, 0)
    assert len(waited) == 43
    assert min(waited) > 0.05, "it loops hot"
    assert max(waited[1:21]) <= requeue_watch.LONGEST_OUTAGE_SECONDS
    assert max(waited) <= requeue_watch.LONGEST_SURPRISE_SECONDS


def test_what_goes_on_is_said_once_and_tried_ever_more_seldom(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ProgrammingError("select", {}, Exception("there is no asset_event"))
    with caplog.at_level(logging.INFO, logger=requeue_watch.__name__):
        waited = run(monkeypatch, 0, *[gone] * 20, 0, *[KeyError("unforeseen")] * 20, 0)
    first, again, second, again_too = caplog.records
    assert "there is no asset_event" in first.getMessage()
    assert "Airflow's tables are not what they were" in first.getMessage()
    assert first.exc_info is None
    assert second.exc_info is not None, "a mistake of ours shows where"
    assert "again" in again.getMessage() == again_too.getMessage()
    for waits in (waited[1:21], waited[22:42]):
        assert max(waits[:3]) <= 4, "what passes is not waited for long"
        assert min(waits[12:]) >= 0.45 * requeue_watch.LONGEST_SURPRISE_SECONDS


def test_a_table_that_changes_while_it_runs(
    database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    database.parse("d", [watched("a")])
    turns = itertools.count(1)
    said: list[int] = []

    def sleep(seconds: float) -> None:
        turn = next(turns)
        if turn == 4:
            database.rename("asset_event", "asset_event_new")
        elif turn == 24:
            database.rename("asset_event_new", "asset_event")
        elif turn == 30:
            raise Enough
        said.append(sum(record.levelno >= logging.WARNING for record in caplog.records))

    # The assets are read at every other turn, which goes well all the while.
    monkeypatch.setattr(requeue_watch, "ASSETS_EVERY_SECONDS", 0.0)
    monkeypatch.setattr(WatchedAssets, "refresh", every_other(WatchedAssets.refresh))
    monkeypatch.setattr(time, "sleep", sleep)
    with pytest.raises(Enough):
        requeue_for_ever()
    assert said[3] == 0
    assert said[-1] == 1, "it is said once"


def test_it_ends_where_it_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__REQUEUE_STRANDED_EVENTS", "False")
    monkeypatch.setattr(requeue_watch, "sweep", pytest.fail)
    requeue_for_ever()


def test_it_ends_where_a_table_is_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []

    def turn(*args: Any) -> int:
        calls.append(1)
        raise AttributeError("AssetEvent has no timestamp")

    monkeypatch.setattr(requeue_watch, "sweep", turn)
    requeue_for_ever()
    assert len(calls) == 1
    assert "AssetEvent has no timestamp" in caplog.text


def test_it_ends_on_an_airflow_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def changed() -> None:
        raise tables.TablesChanged("there is no trigger")

    monkeypatch.setattr(tables, "check", changed)
    monkeypatch.setattr(requeue_watch, "sweep", pytest.fail)
    requeue_for_ever()
    assert "there is no trigger" in caplog.text

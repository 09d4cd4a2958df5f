"""What the events of a trigger's assets hold already is told by the supervisor, from Airflow's database."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models.asset import AssetEvent, AssetWatcherModel
from airflow.models.trigger import Trigger
from airflow.sdk import Asset, AssetWatcher
from sqlalchemy import select, update
from sqlalchemy.exc import OperationalError

from airflow_provider_sharedstream.messages.payload import MessagesEvent, event_payload
from airflow_provider_sharedstream.stream import recall as runner
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.recall import Question
from airflow_provider_sharedstream.stream.roster import PATH_VARIABLE
from airflow_provider_sharedstream.supervisor import recall as supervisor
from airflow_provider_sharedstream.supervisor import tables
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.requeue.airflow_database import AirflowDatabase, now, watched


def trigger_id(database: AirflowDatabase, asset: str) -> int:
    with database.sessions() as session:
        found = session.scalar(
            select(AssetWatcherModel.trigger_id).where(AssetWatcherModel.asset_id == database.asset_id(asset))
        )
    assert found is not None
    return found


def store(database: AirflowDatabase, trigger: int, *keys: str, age_seconds: float = 0.0) -> None:
    payload = event_payload("sqs", "q", [Message(key, None) for key in keys], keys)
    with database.sessions.begin() as session:
        last = session.scalar(select(AssetEvent.id).order_by(AssetEvent.id.desc())) or 0
        Trigger.submit_event(trigger, MessagesEvent(payload=payload), session=session)
        session.flush()
        moment = now() - timedelta(seconds=age_seconds)
        session.execute(update(AssetEvent).where(AssetEvent.id > last).values(timestamp=moment))


def stored(database: AirflowDatabase, trigger: int, within: float = 500.0, most: int = 100) -> dict[str, float]:
    with database.sessions() as session:
        return supervisor.stored(session, Question(trigger, within, most))


def test_what_is_stored(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    database.parse("e", [watched("b")])
    a, b = trigger_id(database, "a"), trigger_id(database, "b")
    database.event("a")  # without keys
    store(database, a, "old", age_seconds=1000)
    store(database, a, "1", "2", age_seconds=30)
    store(database, a, "2", "3", age_seconds=10)
    store(database, b, "other")
    with database.sessions.begin() as session:
        session.add(AssetEvent(asset_id=database.asset_id("a"), extra={"payload": {"dedupe_keys": ["a person's"]}}))
        for payload in ("a text", None, [1], {"dedupe_keys": 5}, {"dedupe_keys": [["x"], None]}):
            extra = {"from_trigger": True, "payload": payload}
            session.add(AssetEvent(asset_id=database.asset_id("a"), extra=extra))
    found = stored(database, a)
    assert set(found) == {"1", "2", "3"}
    assert found["1"] > 30
    assert 10 < found["2"] == found["3"] < found["1"], "the newest event tells"
    assert set(stored(database, a, within=2000)) == {"old", "1", "2", "3"}
    assert set(stored(database, b)) == {"other"}
    assert stored(database, 0) == {}


def test_the_newest_are_told_where_there_are_too_many(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    a = trigger_id(database, "a")
    for number in range(10):
        store(database, a, str(number), age_seconds=20 - number)
    assert set(stored(database, a, most=3)) == {"7", "8", "9"}


def test_an_asset_that_was_added_has_not_had_it(database: AirflowDatabase) -> None:
    trigger = SqsSharedStreamTrigger("q")
    assets = [Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)]) for name in ("a", "b")]
    database.parse("d", assets[:1])
    store(database, trigger_id(database, "a"), "1")
    database.parse("d", assets)
    both = trigger_id(database, "b")
    store(database, both, "2")
    assert set(stored(database, both)) == {"2"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setenv(PATH_VARIABLE, str(made / "roster.json"))
    return made


class Enough(BaseException):
    """Ends what goes on for ever."""


@pytest.fixture
def answering(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The supervisor's thread."""
    end = threading.Event()

    def wait(seconds: float) -> None:
        if end.wait(min(seconds, 0.1)):
            raise Enough

    def answer() -> None:
        with suppress(Enough):
            supervisor.answer_for_ever(folder)

    monkeypatch.setattr(supervisor, "time", SimpleNamespace(sleep=wait))
    thread = threading.Thread(target=answer)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.usefixtures("answering")
def test_a_watcher_asks(database: AirflowDatabase, folder: Path) -> None:
    database.parse("d", [watched("a")])
    a = trigger_id(database, "a")
    store(database, a, "1")
    (folder / f"recall-0{runner.QUESTION}").write_text("[")  # somebody's nonsense holds up nobody
    assert set(asyncio.run(runner.recall(Question(a, 500.0, 10)))) == {"1"}
    limit = time.monotonic() + 60
    while any(folder.iterdir()):
        assert time.monotonic() < limit, "questions are left"
        time.sleep(0.05)


@pytest.mark.usefixtures("answering")
def test_a_folder_that_is_tidied_away_is_made_again(database: AirflowDatabase, folder: Path) -> None:
    database.parse("d", [watched("a")])
    a = trigger_id(database, "a")
    store(database, a, "1")
    folder.rmdir()
    limit = time.monotonic() + 60
    while not folder.exists():
        assert time.monotonic() < limit, "it is not made again"
        time.sleep(0.05)
    assert set(asyncio.run(runner.recall(Question(a, 500.0, 10)))) == {"1"}


@pytest.mark.usefixtures("answering")
def test_a_database_that_is_away_for_a_while(database: AirflowDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.parse("d", [watched("a")])
    a = trigger_id(database, "a")
    store(database, a, "1")
    calls: list[int] = []
    real = supervisor.stored

    def sometimes(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise OperationalError("select", {}, Exception("the database is away"))
        return real(*arguments)

    monkeypatch.setattr(supervisor, "stored", sometimes)
    assert set(asyncio.run(runner.recall(Question(a, 500.0, 10)))) == {"1"}
    assert len(calls) == 3


@pytest.mark.usefixtures("answering")
def test_an_airflow_that_it_does_not_know(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Repeats are told from memory then, and it is said."""

    def changed() -> None:
        raise tables.TablesChanged("there is no asset_event")

    monkeypatch.setattr(tables, "check", changed)
    assert asyncio.run(runner.recall(Question(7, 60.0, 10))) == {}
    assert "there is no asset_event" in caplog.text


def test_nobody_answers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "LONGEST_WAIT_SECONDS", 0.3)
    with pytest.raises(SourceUnavailable, match="doesn't say what is stored"):
        asyncio.run(runner.recall(Question(7, 60.0, 10)))
    assert list(folder.iterdir()) == []


def test_without_a_supervisor(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    assert asyncio.run(runner.recall(Question(7, 60.0, 10))) == {}
    assert "no supervisor" in caplog.text

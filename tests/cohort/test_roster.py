"""The roster's file, and what is seen of it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from airflow_provider_sharedstream.stream.roster import (
    FRESH_SECONDS,
    PATH_VARIABLE,
    Departed,
    Listed,
    Roster,
    RosterReader,
    Sight,
    StreamRoster,
    roster_reader,
    stream_id,
)
from airflow_provider_sharedstream.supervisor.watch import write_roster

FULL = Roster(
    7,
    100.0,
    {
        "s": StreamRoster(7, {1: Listed(0.0, "ü/w"), 2: Listed(99.5, "b/w")}, {3: Departed(98.0, "c/w")}, "queue"),
        "t": StreamRoster(None),
    },
)
EMPTY = Roster(7, 100.0)
TIMEOUT = 60.0


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "roster.json"


def test_what_is_written_is_read(path: Path, clock: Clock) -> None:
    write_roster(path, FULL)
    assert RosterReader(path, clock=clock).look(TIMEOUT) == Sight(FULL, False)
    assert os.listdir(path.parent) == [path.name]


def test_the_newest_is_seen(path: Path, clock: Clock) -> None:
    reader = RosterReader(path, clock=clock)
    for number in range(5):
        clock.now += 1
        write_roster(path, Roster(number, clock.now))
        roster = reader.look(TIMEOUT).roster
        assert roster is not None
        assert roster.job == number


def test_without_a_path_nobody_is_waited_for(clock: Clock) -> None:
    reader = RosterReader(None, clock=clock)
    assert reader.look(TIMEOUT) == Sight(None, True)
    assert not reader.expected


def test_a_file_that_is_not_there_yet_is_waited_for(path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    reader = RosterReader(path, clock=clock)
    clock.now += TIMEOUT
    assert reader.look(TIMEOUT) == Sight(None, False)
    clock.now += FRESH_SECONDS
    assert reader.look(TIMEOUT) == Sight(None, True)
    clock.now += 1000
    assert reader.look(TIMEOUT) == Sight(None, True)
    assert [record.levelno for record in caplog.records] == [logging.ERROR], "loudly, and once"


def test_an_old_one_is_waited_for_then_done_without_then_trusted_again(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write_roster(path, EMPTY)
    reader = RosterReader(path, clock=clock)
    assert reader.look(TIMEOUT).roster == EMPTY
    clock.now += FRESH_SECONDS
    assert reader.look(TIMEOUT) == Sight(None, False)
    clock.now += TIMEOUT
    assert reader.look(TIMEOUT) == Sight(None, True)
    new = Roster(7, clock.now)
    write_roster(path, new)
    clock.now += 1
    with caplog.at_level(logging.INFO):
        assert reader.look(TIMEOUT).roster == new
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.INFO]


def test_one_that_is_off_is_said_once(path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    write_roster(path, Roster(7, 100.0, off="the models have changed"))
    reader = RosterReader(path, clock=clock)
    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.now += 1000
            assert reader.look(TIMEOUT) == Sight(None, True)
    assert [record.getMessage() for record in caplog.records] == [
        "Streams do without a roster: the models have changed"
    ]


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"job": 1, "read_at": 1, "off": null, "streams": {"s": 3}}'])
def test_one_that_makes_no_sense_is_said_and_the_one_before_counts(
    content: str, path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write_roster(path, EMPTY)
    reader = RosterReader(path, clock=clock)
    assert reader.look(TIMEOUT).roster == EMPTY
    path.write_text(content)
    clock.now += 1
    assert reader.look(TIMEOUT).roster == EMPTY
    assert "can't be read" in caplog.text


def test_a_stream_has_a_name_that_processes_agree_on() -> None:
    assert stream_id(("sharedstream", "x", "{}")) == "c6bbdb074490c579"
    assert stream_id(("a", "b")) != stream_id(("a", "c"))


def test_without_a_supervisor_it_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    roster_reader.cache_clear()
    for _ in range(3):
        assert roster_reader().look(TIMEOUT) == Sight(None, True)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "join_grace_seconds" in line

"""Who belongs to each stream, and whose successor is waited for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone

import pytest

from airflow_provider_sharedstream.stream.roster import Departed, Listed, Roster, StreamRoster
from airflow_provider_sharedstream.supervisor.membership import Member, Membership
from airflow_provider_sharedstream.supervisor.tables import Link

NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


class Airflow:
    """What the membership asks of the database."""

    def __init__(self, grace_seconds: float = 60.0) -> None:
        self.membership = Membership(7, grace_seconds)
        self.members: dict[int, Member] = {}
        self.parsed: dict[int, datetime] = {}
        """Assets whose Dags are active and not paused, and when those were parsed."""
        self.now = 100.0
        self.asked = 0

    def add(self, number: int, *links: tuple[int, str], stream: str = "s", source: str = "queue") -> None:
        names = ", ".join(f"asset{asset}/{watcher}" for asset, watcher in links)
        held = frozenset(Link(asset, watcher) for asset, watcher in links)
        self.members[number] = Member(number, stream, source, 7, held, names)
        for asset, _ in links:
            self.parsed.setdefault(asset, NOON)

    def parse(self, asset: int) -> None:
        self.parsed[asset] += timedelta(seconds=30)

    def read(self, seconds: float = 1.0) -> Roster:
        self.now += seconds
        return self.membership.update(self.members.values(), self.now, self._watched)

    def stream(self, seconds: float = 1.0, stream: str = "s") -> StreamRoster:
        return self.read(seconds).streams[stream]

    def _watched(self, asset_ids: Iterable[int]) -> Mapping[int, datetime]:
        self.asked += 1
        return {asset: self.parsed[asset] for asset in asset_ids if asset in self.parsed}


def test_those_of_the_first_reading_were_always_there() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    assert airflow.read() == Roster(7, 101.0, {"s": StreamRoster(7, {1: Listed(0.0, "asset5/w")}, {}, "queue")})


def test_a_newcomer_counts_from_the_last_reading_without_it() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.read()
    airflow.add(2, (6, "w"))
    assert airflow.stream().members[2] == Listed(101.0, "asset6/w")
    assert airflow.stream().members[2].since == 101.0, "it stays"


def test_the_departed_is_waited_for_until_its_successor_is_there() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    stream = airflow.stream()
    assert stream.departed == {1: Departed(101.0, "asset5/w")}
    assert set(stream.members) == {2}
    assert airflow.stream().departed
    airflow.parse(5)
    airflow.add(3, (5, "w"))
    stream = airflow.stream()
    assert not stream.departed
    assert set(stream.members) == {2, 3}


def test_nobody_is_asked_while_nobody_has_departed() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    for _ in range(10):
        airflow.read()
    assert airflow.asked == 0


def test_a_sibling_of_the_same_name_is_no_successor() -> None:
    """An asset may have two watchers of one name; the other was there all the time."""
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.add(2, (5, "w"))
    airflow.read()
    del airflow.members[1]
    assert airflow.stream().departed
    assert airflow.stream().departed


def test_old_and_new_at_one_reading() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.read()
    del airflow.members[1]
    airflow.add(2, (5, "w"))
    assert not airflow.stream().departed


def test_a_successor_on_another_stream() -> None:
    """The watcher's queue was changed: the old stream has nobody to wait for."""
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    assert airflow.stream().departed
    airflow.add(3, (5, "w"), stream="other")
    roster = airflow.read()
    assert not roster.streams["s"].departed
    assert set(roster.streams["other"].members) == {3}


@pytest.mark.parametrize("later", [False, True])
def test_a_paused_or_deleted_dag_is_not_waited_for(later: bool) -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    if later:
        assert airflow.stream().departed
    del airflow.parsed[5]
    assert not airflow.stream().departed


def test_three_parses_without_it_and_it_does_not_come_back(caplog: pytest.LogCaptureFixture) -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    assert airflow.stream().departed
    airflow.parse(5)
    assert airflow.stream().departed, "the next parse after the one that deleted it"
    airflow.parse(5)
    assert airflow.stream().departed
    airflow.parse(5)
    with caplog.at_level(logging.WARNING):
        assert not airflow.stream().departed
    assert "asset5/w" in caplog.text


def test_the_grace_ends_it_once_it_was_parsed() -> None:
    airflow = Airflow(grace_seconds=60)
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    airflow.read()
    assert airflow.stream(100).departed, "its file wasn't parsed in all this time"
    airflow.parse(5)
    assert not airflow.stream().departed


def test_a_dag_processor_that_stands_still_is_not_waited_for_for_ever() -> None:
    airflow = Airflow(grace_seconds=60)
    airflow.add(1, (5, "w"))
    airflow.add(2, (6, "w"))
    airflow.read()
    del airflow.members[1]
    airflow.read()
    assert airflow.stream(299).departed
    assert not airflow.stream(2).departed


def test_a_trigger_of_two_assets_that_loses_one() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"), (6, "w"))
    airflow.read()
    airflow.add(1, (6, "w"))
    stream = airflow.stream()
    assert set(stream.members) == {1}
    assert set(stream.departed) == {1}
    airflow.add(2, (5, "w"))
    assert not airflow.stream().departed


def test_every_stream_of_the_source_waits_for_who_comes_back_to_another_stream() -> None:
    """Of two watchers whose arguments differed, one is given the other's."""
    airflow = Airflow()
    airflow.add(1, (5, "w"), stream="ours")
    airflow.add(2, (6, "w"), stream="theirs")
    airflow.add(3, (7, "w"), stream="elsewhere", source="another queue")
    airflow.read()
    del airflow.members[2]
    streams = airflow.read().streams
    gone = {2: Departed(101.0, "asset6/w")}
    assert {name: stream.departed for name, stream in streams.items()} == {
        "ours": gone,
        "theirs": gone,
        "elsewhere": {},
    }
    airflow.add(4, (6, "w"), stream="ours")
    streams = airflow.read(9.0).streams
    assert streams["ours"].members[4] == Listed(gone[2].until, "asset6/w"), "what came since then is for it"
    assert not any(stream.departed for stream in streams.values())
    assert set(streams["ours"].members) == {1, 4}


def test_who_is_declared_and_has_no_trigger_at_the_start_is_waited_for() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.parsed[6] = NOON
    links = [frozenset({Link(asset, "w")}) for asset in (5, 6)]
    declared = [Member(-n, "s", "queue", None, links[n], f"asset{5 + n}/w") for n in (0, 1)]
    airflow.membership.expect(declared, airflow.now + 1)
    stream = airflow.stream()
    assert stream.departed == {-1: Departed(0.0, "asset6/w")}
    assert set(stream.members) == {1}
    airflow.add(2, (6, "w"))
    assert not airflow.stream().departed


def test_a_stream_whose_last_watcher_departed_stays_on_the_roster() -> None:
    airflow = Airflow()
    airflow.add(1, (5, "w"))
    airflow.read()
    del airflow.members[1]
    assert airflow.stream() == StreamRoster(None, {}, {1: Departed(101.0, "asset5/w")}, "queue")
    del airflow.parsed[5]
    assert airflow.read().streams == {}

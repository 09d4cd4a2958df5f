"""Who belongs to each stream, and who has left it for a moment only.

When a watcher's arguments change in its Dag file, Airflow deletes its trigger at one parse and makes the new one at the
next. What arrives in between is for the new one to see, so the streams of its source wait for it: as long as the asset
has a Dag that is active and not paused, until a new trigger watches for it, or that Dag has been parsed three times
more without one.

A triggerer that is started in between can't remember the old trigger. It asks once what the stored Dags declare.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from airflow_provider_sharedstream.stream.roster import Departed, Listed, Roster, StreamRoster
from airflow_provider_sharedstream.supervisor.tables import Link

log = logging.getLogger(__name__)

PARSES = 3
"""So many parses of its Dag file without a successor, and none will come. One of them may be that which deleted it, and
one may be seen a moment before the trigger that it made.
"""

LONGEST = 5
"""So many times the grace is waited for if the Dag file isn't parsed at all meanwhile."""


class Member(NamedTuple):
    """A watcher of ours, as just read.

    :param trigger_id: its row.
    :param stream: its stream's name on the roster.
    :param source: the name of its source.
    :param owner: the triggerer that its source belongs to.
    :param links: what it watches for.
    :param name: assets and watchers, for logs.
    """

    trigger_id: int
    stream: str
    source: str
    owner: int | None
    links: frozenset[Link]
    name: str


@dataclass
class _Known:
    member: Member
    since: float
    """When the database was last read without it."""
    came: Mapping[Link, float]
    """When each of its links was first read."""


@dataclass
class _Departure:
    trigger_id: int
    stream: str
    source: str
    name: str
    links: frozenset[Link]
    """Those that nothing has taken the place of yet."""
    until: float
    noticed_at: float
    parses: int = -1
    last_parse: dict[int, datetime] = field(default_factory=dict)

    def note_parses(self, assets: Mapping[int, datetime]) -> None:
        """Count the parses of the Dags that it waits for; the first time is that of the parse that deleted it."""
        parsed = {link.asset_id: assets[link.asset_id] for link in self.links}
        if parsed != self.last_parse:
            self.parses += 1
            self.last_parse = parsed

    def is_over(self, now: float, grace_seconds: float) -> bool:
        """Whether it is waited for no longer."""
        if self.parses >= PARSES:
            return True
        return now - self.noticed_at >= (grace_seconds if self.parses > 0 else LONGEST * grace_seconds)


class Membership:
    """Remembers from one reading to the next.

    :param job_id: the triggerer job that reads.
    :param departure_grace_seconds: how long a departed watcher's successor is waited for.
    """

    def __init__(self, job_id: int, departure_grace_seconds: float) -> None:
        self._job_id = job_id
        self._grace_seconds = departure_grace_seconds
        self._known: dict[int, _Known] = {}
        self._departures: list[_Departure] = []
        self._read_at = 0.0

    def expect(self, members: Iterable[Member], read_at: float) -> None:
        """Note, before the first reading, who is declared: those that have no trigger then are waited for.

        :param members: with made-up trigger ids.
        """
        for member in members:
            self._depart(member, member.links, read_at)

    def update(
        self,
        members: Iterable[Member],
        read_at: float,
        watched_assets: Callable[[Iterable[int]], Mapping[int, datetime]],
    ) -> Roster:
        """Take what was just read, and return the roster.

        :param read_at: when the reading began.
        :param watched_assets: returns which of some assets have watchers if their Dags declare any, with the time of
            those Dags' last parse. Asked only while somebody has departed.
        """
        before, self._known = self._known, {}
        for member in members:
            self._known[member.trigger_id] = self._recognize(member, before.get(member.trigger_id), read_at)
        for number, known in before.items():
            still = self._known[number].member.links if number in self._known else frozenset()
            if gone := known.member.links - still:
                self._depart(known.member, gone, read_at)
        if self._departures:
            self._wait_for_successors(read_at, watched_assets)
        self._read_at = read_at
        return Roster(self._job_id, read_at, self._streams())

    def _recognize(self, member: Member, known: _Known | None, read_at: float) -> _Known:
        if known is None:
            return _Known(member, self._read_at, dict.fromkeys(member.links, read_at))
        return _Known(member, known.since, {link: known.came.get(link, read_at) for link in member.links})

    def _depart(self, member: Member, links: frozenset[Link], read_at: float) -> None:
        departure = _Departure(
            member.trigger_id, member.stream, member.source, member.name, links, self._read_at, read_at
        )
        self._departures.append(departure)

    def _wait_for_successors(
        self, now: float, watched_assets: Callable[[Iterable[int]], Mapping[int, datetime]]
    ) -> None:
        came: dict[Link, _Known] = {}
        for known in self._known.values():
            for link, at in known.came.items():
                if link not in came or at > came[link].came[link]:
                    came[link] = known
        assets = watched_assets({link.asset_id for departure in self._departures for link in departure.links})
        waiting = []
        for departure in self._departures:
            left = set()
            for link in (link for link in departure.links if link.asset_id in assets):
                successor = came.get(link)
                if successor is None or successor.came[link] < departure.noticed_at:
                    left.add(link)
                else:
                    # What arrived since the old trigger was last there, and isn't settled yet, is for the new one.
                    successor.since = min(successor.since, departure.until)
            departure.links = frozenset(left)
            if not departure.links:
                continue
            departure.note_parses(assets)
            if departure.is_over(now, self._grace_seconds):
                log.warning(
                    "Nothing has taken the place of the watcher %s (trigger %d) in %.0f s, and its stream goes on "
                    "without it. If its Dag file still declares it, set [sharedstream] departure_grace_seconds to more "
                    "than two parses of that file take.",
                    departure.name,
                    departure.trigger_id,
                    now - departure.noticed_at,
                )
                continue
            waiting.append(departure)
        self._departures = waiting

    def _streams(self) -> dict[str, StreamRoster]:
        owners: dict[str, int | None] = {}
        sources: dict[str, str] = {}
        members: dict[str, dict[int, Listed]] = {}
        departed: dict[str, dict[int, Departed]] = {}
        for number, known in self._known.items():
            stream = known.member.stream
            owners[stream] = known.member.owner
            sources[stream] = known.member.source
            members.setdefault(stream, {})[number] = Listed(known.since, known.member.name)
        sources.update((departure.stream, departure.source) for departure in self._departures)
        for departure in self._departures:
            # Its successor's stream may be another: that of its siblings, whose arguments it had not.
            for stream in (stream for stream, source in sources.items() if source == departure.source):
                departed.setdefault(stream, {})[departure.trigger_id] = Departed(departure.until, departure.name)
        return {
            stream: StreamRoster(owners.get(stream), members.get(stream, {}), departed.get(stream, {}), source)
            for stream, source in sources.items()
        }

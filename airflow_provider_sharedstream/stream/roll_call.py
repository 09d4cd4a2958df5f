"""Who of those on the roster is here, and for how long the others are waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.claim import wanted_by
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.roster import Listed, Roster, RosterReader, Sight, StreamRoster

log = logging.getLogger(__name__)

COHORT_TIMEOUT_SECONDS = 60.0
"""Default of ``[sharedstream] cohort_timeout_seconds``."""


class Stranger(NamedTuple):
    """A watcher of another stream on a source of this one's name.

    :param stream: the other stream's name on the roster.
    :param listed: the watcher.
    """

    stream: str
    listed: Listed


class _Absences:
    """Since when watchers are absent, and which of them are waited for no longer."""

    def __init__(self) -> None:
        self.excused: frozenset[int] = frozenset()
        self._since: dict[int, float] = {}

    def clear(self) -> None:
        """Wait for each of them anew; who is excused stays so until the next look."""
        self._since.clear()

    def forget(self, number: int) -> None:
        """Note that a watcher has come."""
        self._since.pop(number, None)
        self.excused -= {number}

    def look(self, missing: Mapping[int, str], timeout_seconds: float, stream_metrics: StreamMetrics) -> None:
        """Excuse those that have been absent for so long.

        :param missing: names of all that are absent now, by trigger id.
        """
        now = time.monotonic()
        self._since = {number: self._since.get(number, now) for number in missing}
        late = frozenset(number for number, since in self._since.items() if now - since >= timeout_seconds)
        for number in sorted(late - self.excused):
            stream_metrics.count(metrics.COHORT_TIMEOUTS)
            log.error(
                "After %.0f s the stream goes on without waiting for %s (trigger %d). Messages that it takes now are "
                "not kept for that watcher. The triggerer's log says why it doesn't listen, if it could be started.",
                now - self._since[number],
                missing[number],
                number,
            )
        self.excused = late


class RollCall:
    """Compares one stream's watchers in this process with the roster.

    Two sources of one name may be one: a queue has its name in every region, and watchers of one queue whose other
    arguments differ make two streams. It shows when both streams have connected. Until then watchers of the other are
    waited for like the stream's own.

    :param stream: the stream's name on the roster.
    :param reader: reads it.
    """

    def __init__(self, stream: str, reader: RosterReader) -> None:
        self.timeout_seconds = COHORT_TIMEOUT_SECONDS
        """How long an absent watcher is waited for."""
        self.metrics = StreamMetrics("", stream)
        self.stream = stream
        self._reader = reader
        self._looked_at: Roster | None = None
        self._found: dict[int, Stranger] = {}
        """The strangers on the roster that was looked at last."""
        self._known: frozenset[int] = frozenset()
        """Of those here, who has been on a roster."""
        self._absent = _Absences()
        self._strange = _Absences()

    @property
    def excused(self) -> frozenset[int]:
        """Trigger ids of those that are waited for no longer."""
        return self._absent.excused | self._strange.excused

    @property
    def expected(self) -> bool:
        """Whether there is a roster to look at, now or soon."""
        return self._reader.expected

    def look(self) -> Sight:
        """Return what can be seen of the roster."""
        return self._reader.look(self.timeout_seconds)

    def standing(self, roster: Roster) -> StreamRoster:
        """Return who belongs to the stream by ``roster``."""
        return roster.streams.get(self.stream) or StreamRoster(owner=None)

    def owed(self, roster: Roster) -> StreamRoster:
        """Return who has to see the source's messages by ``roster``, as far as is known."""
        stream = self.standing(roster)
        mine = wanted_by(self.stream)
        rivals = {n: one.listed for n, one in self._strangers(roster).items() if wanted_by(one.stream) in (None, mine)}
        return replace(stream, members={**stream.members, **rivals}) if rivals else stream

    def why_hold(self) -> str | None:
        """Return why a stream that has connected may not receive yet: it isn't known who else takes from its source."""
        roster = self.look().roster
        unknown = {} if roster is None else self._unknown(roster)
        self._strange.look(unknown, self.timeout_seconds, self.metrics)
        waited = sorted(name for number, name in unknown.items() if number not in self.excused)
        return f"waiting for {', '.join(waited)}" if waited else None

    def why_wait(self, here: Mapping[int, str]) -> str | None:
        """Return why no message may be taken now, or None.

        :param here: names of the watchers that listen in this process, by trigger id.
        """
        sight = self.look()
        if sight.blind:
            return None
        if sight.roster is None:
            return "the triggerer has not said yet who belongs to it"
        roster = sight.roster
        stream = self.standing(roster)
        if stream.owner is not None and stream.owner != roster.job:
            self._absent.clear()
            return f"its watchers belong to triggerer {stream.owner} and are being moved there from {roster.job}"
        missing = self._missing(here, stream)
        self._absent.look(missing, self.timeout_seconds, self.metrics)
        if waited := sorted(name for number, name in missing.items() if number not in self.excused):
            return f"waiting for {', '.join(waited)}"
        if stream.departed:
            names = ", ".join(sorted(departed.name for departed in stream.departed.values()))
            return f"waiting for what takes the place of {names}"
        if stream.owner is None and not here.keys() <= self.excused:
            return "its watchers are being removed, or this triggerer's heartbeat is late"
        return None

    def welcome(self, number: int) -> None:
        """Note that a watcher has come: if it leaves, it is waited for anew."""
        self._absent.forget(number)

    def _missing(self, here: Mapping[int, str], stream: StreamRoster) -> dict[int, str]:
        self._known = (self._known & here.keys()) | stream.members.keys()
        missing = {number: listed.name for number, listed in stream.members.items() if number not in here}
        for number, name in here.items():
            # It has been started, so its row exists: the roster is a moment behind, or can't tell whose row it is.
            if number not in self._known:
                missing[number] = f"{name} to appear among those who belong to it"
        return missing

    def _strangers(self, roster: Roster) -> dict[int, Stranger]:
        """Return the watchers of other streams on a source of this name, where its owner has them too."""
        if self._looked_at is not roster:
            self._looked_at = roster
            stream = self.standing(roster)
            self._found = {
                number: Stranger(name, listed)
                for name, other in roster.streams.items()
                if name != self.stream and (other.source, other.owner) == (stream.source, stream.owner)
                for number, listed in other.members.items()
            }
        return self._found

    def _unknown(self, roster: Roster) -> dict[int, str]:
        """Return those of whose stream it isn't known what it takes from."""
        return {
            number: f"{one.listed.name}, whose other arguments make another stream of what may be the same source"
            for number, one in self._strangers(roster).items()
            if wanted_by(one.stream) is None
        }

"""Who of those on the roster is here, and for how long the others are waited for."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.roster import Roster, RosterReader, Sight, StreamRoster

log = logging.getLogger(__name__)

COHORT_TIMEOUT_SECONDS = 60.0
"""Default of ``[sharedstream] cohort_timeout_seconds``."""


class RollCall:
    """Compares one stream's watchers in this process with the roster.

    :param stream: the stream's name on the roster.
    :param reader: reads it.
    """

    def __init__(self, stream: str, reader: RosterReader) -> None:
        self.timeout_seconds = COHORT_TIMEOUT_SECONDS
        """How long an absent watcher is waited for."""
        self.metrics = StreamMetrics("", stream)
        self.excused: frozenset[int] = frozenset()
        """Trigger ids of those that are waited for no longer."""
        self._stream = stream
        self._reader = reader
        self._known: frozenset[int] = frozenset()
        """Of those here, who has been on a roster."""
        self._absent_since: dict[int, float] = {}

    @property
    def expected(self) -> bool:
        """Whether there is a roster to look at, now or soon."""
        return self._reader.expected

    def look(self) -> Sight:
        """Return what can be seen of the roster."""
        return self._reader.look(self.timeout_seconds)

    def standing(self, roster: Roster) -> StreamRoster:
        """Return who belongs to the stream by ``roster``."""
        return roster.streams.get(self._stream) or StreamRoster(owner=None)

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
            self._absent_since.clear()
            return f"its watchers belong to triggerer {stream.owner} and are being moved there from {roster.job}"
        missing = self._missing(here, stream)
        self._lose_patience(missing)
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
        self._absent_since.pop(number, None)
        self.excused -= {number}

    def _missing(self, here: Mapping[int, str], stream: StreamRoster) -> dict[int, str]:
        self._known = (self._known & here.keys()) | stream.members.keys()
        missing = {number: listed.name for number, listed in stream.members.items() if number not in here}
        for number, name in here.items():
            # It has been started, so its row exists: the roster is a moment behind, or can't tell whose row it is.
            if number not in self._known:
                missing[number] = f"{name} to appear among those who belong to it"
        return missing

    def _lose_patience(self, missing: Mapping[int, str]) -> None:
        now = time.monotonic()
        for number in list(self._absent_since):
            if number not in missing:
                del self._absent_since[number]
        for number in missing:
            self._absent_since.setdefault(number, now)
        late = frozenset(n for n, since in self._absent_since.items() if now - since >= self.timeout_seconds)
        for number in sorted(late - self.excused):
            self.metrics.count(metrics.COHORT_TIMEOUTS)
            log.error(
                "After %.0f s the stream goes on without waiting for %s (trigger %d). Messages that it takes now are "
                "not kept for that watcher. The triggerer's log says why it doesn't listen, if it could be started.",
                now - self._absent_since[number],
                missing[number],
                number,
            )
        self.excused = late

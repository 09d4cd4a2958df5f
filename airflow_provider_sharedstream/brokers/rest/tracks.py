"""Which watchers ask together, from where, and how far they have come."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from airflow_provider_sharedstream.brokers.rest.asks import Ask, Validators
from airflow_provider_sharedstream.brokers.rest.offers import Checkpoint, Offer
from airflow_provider_sharedstream.brokers.rest.positions import Positions


class Remembered(NamedTuple):
    """Of an answer, in case the next one is that nothing has changed.

    :param validators: its own.
    :param keys: of its items, which are then still listed.
    :param next: the request for the page after it.
    :param cursor: its cursor.
    :param items: how many items it held.
    """

    validators: Validators
    keys: tuple[str, ...]
    next: Ask | None
    cursor: Any
    items: int


class Walk:
    """One way through all pages of an answer; it may take several polls.

    :param ask: the first request.
    :param leads: who is on it from its beginning.
    :param cursor: where it starts.
    """

    def __init__(self, ask: Ask, leads: Collection[str], cursor: Any) -> None:
        self.ask = ask
        self.leads = frozenset(leads)
        self.cursor = cursor
        self.pages = 0
        self.items = 0
        self.asked = {ask.key}
        self.listed: set[str] = set()
        self.remembered: dict[str, Remembered] = {}
        self.checkpoint = Checkpoint(leads)


class Track:
    """Watchers that stand at the same place, so that one poll serves them all.

    :param leads: the assets by whose positions they go.
    :param cursor: where they stand.
    """

    def __init__(self, leads: Iterable[str], cursor: Any) -> None:
        self.leads = set(leads)
        self.cursor = cursor
        self.walk: Walk | None = None
        self.next_at = 0.0
        """Monotonic time of the next poll."""
        self.remembered: dict[str, Remembered] = {}
        self.checkpoints: deque[Checkpoint] = deque()
        self.page: list[Offer] = []
        """What was new on the newest page."""

    @property
    def held_since(self) -> float | None:
        """When the newest page was handed out, where the next one waits for something of it."""
        return max((offer.taken_at for offer in self.page if offer.pending), default=None)

    @property
    def at_rest(self) -> bool:
        """Whether it has come to the end, with everything settled that it found."""
        return self.walk is None and not self.checkpoints

    def begin(self, ask: Ask) -> Walk:
        """Start a walk."""
        self.walk = Walk(ask, self.leads, self.cursor)
        self.checkpoints.append(self.walk.checkpoint)
        return self.walk

    def new_checkpoint(self, walk: Walk) -> None:
        """Go on with a checkpoint of its own for what follows."""
        walk.checkpoint = Checkpoint(self.leads)
        self.checkpoints.append(walk.checkpoint)

    def pass_checkpoints(self) -> Iterator[tuple[str, Any]]:
        """Yield who may move to which cursor, since everything before is settled."""
        while self.checkpoints and self.checkpoints[0].read and not self.checkpoints[0].open:
            passed = self.checkpoints.popleft()
            yield from ((lead, passed.cursor) for lead in passed.leads & self.leads)

    def start_over(self, positions: Positions) -> None:
        """Go back to what is settled, as after a failure."""
        self.walk = None
        self.remembered = {}
        self.page = []
        self.checkpoints.clear()
        self.cursor = positions.of(min(self.leads)).cursor if self.leads else None


class Tracks:
    """All tracks of an endpoint: one, but while somebody who came later is catching up.

    :param positions: of all assets.
    """

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._tracks: list[Track] = []

    def __iter__(self) -> Iterator[Track]:
        return iter(self._tracks)

    @property
    def leads(self) -> set[str]:
        """Everybody who is on a track."""
        return {lead for track in self._tracks for lead in track.leads}

    def keep(self, leads: Collection[str]) -> None:
        """Let go of who isn't in ``leads``."""
        for track in self._tracks:
            track.leads.intersection_update(leads)
            for checkpoint in track.checkpoints:
                checkpoint.leads.intersection_update(leads)
        self._tracks = [track for track in self._tracks if track.leads]

    def join(self, leads: Iterable[str]) -> None:
        """Put newcomers on tracks of their own, those together that stand at the same place."""
        newcomers: list[Track] = []
        for lead in leads:
            cursor = self._positions.of(lead).cursor
            for track in newcomers:
                if track.cursor == cursor:
                    track.leads.add(lead)
                    break
            else:
                newcomers.append(Track([lead], cursor))
        self._tracks += newcomers

    def merge(self) -> None:
        """Join tracks that have come to rest at the same place."""
        resting = [track for track in self._tracks if track.at_rest and track.next_at]
        for number, track in enumerate(resting):
            for other in resting[number + 1 :]:
                if track.leads and other.leads and other.cursor == track.cursor:
                    track.leads |= other.leads
                    other.leads.clear()
        self._tracks = [track for track in self._tracks if track.leads]

    def start_over(self) -> None:
        """Go back to what is settled."""
        for track in self._tracks:
            track.start_over(self._positions)

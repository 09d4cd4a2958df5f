"""Who is there, and from where each goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Hashable

from airflow_provider_sharedstream.brokers.rest.positions import Positions, PositionUnreadable
from airflow_provider_sharedstream.brokers.rest.store import AssetGone, StateStoreTrouble
from airflow_provider_sharedstream.brokers.rest.tracks import Tracks
from airflow_provider_sharedstream.brokers.rest.watcher import SILENT, RestWatcher
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.reconnect import Backoff

log = logging.getLogger(__name__)


class Attendance:
    """The watchers of an endpoint.

    :param stream: the endpoint in words.
    :param positions: up to where each asset has read.
    :param tracks: which of them ask together.
    :param introductions: what those who listen now say of themselves.
    """

    def __init__(
        self, stream: str, positions: Positions, tracks: Tracks, introductions: Callable[[], Collection[Hashable]]
    ) -> None:
        self._stream = stream
        self._positions = positions
        self._tracks = tracks
        self._introductions = introductions
        self._backoff = Backoff(1.0, 60.0)
        self.welcome_at = 0.0
        """Monotonic time before which newcomers are not looked after, since it failed."""

    def watchers(self) -> frozenset[RestWatcher]:
        """Return everybody who listens. Somebody always does: whoever drives the adapter alone says nothing of
        himself.
        """
        known = frozenset(one for one in self._introductions() if isinstance(one, RestWatcher))
        return known or frozenset((SILENT,))

    def present(self) -> list[RestWatcher]:
        """Return those who listen and whose position is known; let go of who has left."""
        watchers = self.watchers()
        self._tracks.keep({watcher.lead for watcher in watchers})
        leads = self._tracks.leads
        return [watcher for watcher in watchers if watcher.lead in leads]

    def newcomers(self) -> list[RestWatcher]:
        """Return those who listen and whose position is not known."""
        watchers = self.watchers()
        self._tracks.keep({watcher.lead for watcher in watchers})
        leads = self._tracks.leads
        return sorted((w for w in watchers if w.lead not in leads), key=lambda w: (w.assets, str(w.number)))

    async def welcome(self) -> None:
        """Find out up to where newcomers have read, and put them on their way.

        :raises SourceUnavailable: nobody is on the way, since what is stored can't be understood.
        :raises StateStoreTrouble: nobody is on the way, since it can't be found out.
        """
        loaded: set[str] = set()
        trouble: Exception | None = None
        try:
            for watcher in self.newcomers():
                try:
                    if watcher.lead not in loaded:
                        await self._load(watcher)
                    loaded.add(watcher.lead)
                except (AssetGone, StateStoreTrouble, PositionUnreadable) as error:
                    trouble = error
        finally:
            # Also when time is up: so many that it takes too long begin bit by bit. Who has left meanwhile is let go
            # of at the next look.
            self._tracks.join(sorted(loaded - self._tracks.leads))
        if trouble is None:
            self._backoff.reset()
            return
        if not self._tracks.leads:
            raise trouble if isinstance(trouble, StateStoreTrouble) else SourceUnavailable(str(trouble))
        seconds = self._backoff.next_seconds()
        self.welcome_at = time.monotonic() + seconds
        log.error("A watcher of %s can't begin, next try in %.0f s: %s", self._stream, seconds, trouble)

    async def _load(self, watcher: RestWatcher) -> None:
        stored = [asset for asset in watcher.assets if await self._positions.load(asset)]
        if stored:
            # An asset that was added to the trigger goes on where the trigger stands.
            leads = {other.lead for other in self.watchers()} - {watcher.lead}
            for asset in watcher.assets:
                if asset not in stored and asset not in leads:
                    self._positions.copy(stored[0], asset)
        position = self._positions.of(watcher.lead)
        if not position.begun and any(w.first_poll == "all" for w in self.watchers() if w.lead == watcher.lead):
            position.begin()

    def followers(self) -> dict[str, set[str]]:
        """Return, of each asset that leads, whose positions go with it: its own, and those of the other assets of its
        watchers, unless they lead somebody themselves.
        """
        watchers = self.watchers()
        leads = {watcher.lead for watcher in watchers}
        followers = {lead: {lead} for lead in leads}
        for watcher in watchers:
            followers[watcher.lead].update(asset for asset in watcher.assets if asset not in leads)
        return followers

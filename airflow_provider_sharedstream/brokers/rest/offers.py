"""What was found and is with the watchers, or waits to be: who it is for, who has looked at it, when it comes again."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from airflow_provider_sharedstream.brokers.rest.answers import Item
from airflow_provider_sharedstream.brokers.rest.watcher import SILENT, RestWatcher


class Checkpoint:
    """A place to go on from once everything before it is settled.

    :param leads: whose place it is.
    """

    def __init__(self, leads: Iterable[str]) -> None:
        self.leads = set(leads)
        self.cursor: Any = None
        self.read = False
        """Whether everything before it has been found."""
        self.open = 0
        """How much of what was found is not settled."""


class Offer:
    """One item for some watchers.

    :param item: the item.
    :param leads: the assets that haven't had it.
    :param checkpoint: what it holds up.
    """

    __slots__ = ("checkpoints", "closed", "histories", "item", "leads", "pending", "seen", "taken_at", "watchers")

    def __init__(self, item: Item, leads: Collection[str], checkpoint: Checkpoint) -> None:
        self.item = item
        self.leads = frozenset(leads)
        self.checkpoints = [checkpoint]
        checkpoint.open += 1
        self.watchers: frozenset[RestWatcher] = frozenset()
        """Who it was handed out for."""
        self.seen: set[RestWatcher] = set()
        self.histories: Mapping[str, str] = {}
        """Of each asset's position, when it was handed out."""
        self.closed = False
        self.pending = True
        """Whether the next page waits: until it is stored that everybody has had it, or it is given back."""
        self.taken_at = 0.0
        """When it was handed out."""

    def show_to(self, watcher: RestWatcher) -> bool:
        """Return whether it is for ``watcher``, and note that it has looked at it."""
        if watcher not in self.watchers:
            return False
        self.seen.add(watcher)
        return True

    def missed_by(self) -> frozenset[str]:
        """Return the assets of which not every watcher has looked at it."""
        there = {watcher.lead for watcher in self.watchers}
        blind = {watcher.lead for watcher in self.watchers if watcher not in self.seen and watcher is not SILENT}
        return (self.leads - there) | blind

    def hold_up(self, checkpoint: Checkpoint) -> None:
        """Hold up one more checkpoint."""
        if checkpoint not in self.checkpoints:
            self.checkpoints.append(checkpoint)
            checkpoint.open += 1


class Offers:
    """All offers that are not settled.

    :param clock: monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, list[Offer]] = {}
        self._ready: deque[Offer] = deque()
        self._later: list[tuple[float, int, Offer]] = []
        self._order = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    @property
    def waiting(self) -> int:
        """How many are ready to be handed out."""
        return len(self._ready)

    def add(self, item: Item, leads: Collection[str], checkpoint: Checkpoint) -> Offer | None:
        """Offer an item to those of ``leads`` to whom it isn't offered yet; return the offer, if there are any."""
        left = set(leads)
        for offer in self._open.get(item.key, ()):
            if offer.leads & left and offer.item.id == item.id:
                offer.hold_up(checkpoint)
                left -= offer.leads
        if not left:
            return None
        offer = Offer(item, left, checkpoint)
        self._open.setdefault(item.key, []).append(offer)
        self._ready.append(offer)
        return offer

    def next_due_seconds(self) -> float | None:
        """Return how long until the next one that was given back comes again; None: there is none."""
        return max(0.0, self._later[0][0] - self._clock()) if self._later else None

    def take(self, most: int, present: Collection[RestWatcher]) -> list[Offer]:
        """Hand out up to ``most`` to the watchers who are there; what is nobody's any more is closed."""
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            self._ready.appendleft(heapq.heappop(self._later)[2])
        by_lead: dict[str, list[RestWatcher]] = {}
        for watcher in present:
            by_lead.setdefault(watcher.lead, []).append(watcher)
        taken: list[Offer] = []
        while self._ready and len(taken) < most:
            offer = self._ready.popleft()
            if offer.closed:
                continue
            offer.watchers = frozenset(watcher for lead in offer.leads for watcher in by_lead.get(lead, ()))
            offer.seen = set()
            offer.taken_at = now
            if offer.watchers:
                taken.append(offer)
            else:
                self.close(offer)
                offer.pending = False
        return taken

    def give_back(self, offer: Offer, delay_seconds: float) -> None:
        """Hand an offer out again after a while."""
        offer.pending = False
        if not offer.closed:
            heapq.heappush(self._later, (self._clock() + delay_seconds, next(self._order), offer))

    def close(self, offer: Offer) -> None:
        """Forget an offer; what it held up goes on."""
        if offer.closed:
            return
        offer.closed = True
        for checkpoint in offer.checkpoints:
            checkpoint.open -= 1
        same = self._open[offer.item.key]
        same.remove(offer)
        if not same:
            del self._open[offer.item.key]

    def drop_waiting(self) -> None:
        """Close those that were never handed out: they will be found again."""
        waiting, self._ready = self._ready, deque()
        for offer in waiting:
            if offer.watchers:
                # It was given back, and nobody will find it again for the asking.
                self._ready.append(offer)
            else:
                self.close(offer)

    def renew(self, offer: Offer, leads: Collection[str]) -> None:
        """Offer it anew to ``leads``, who were not all there when it was handed out."""
        again = Offer(offer.item, leads, offer.checkpoints[0])
        for checkpoint in offer.checkpoints[1:]:
            again.hold_up(checkpoint)
        self._open.setdefault(offer.item.key, []).append(again)
        self._ready.append(again)

"""Deliveries to batches."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.waiting import wait_until_set


class _Pile:
    __slots__ = ("deliveries", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.deliveries: deque[Delivery] = deque()


class Assembler:
    """Gathers the deliveries of each lane until there are enough, or the oldest has waited long enough.

    :param batch_size: most deliveries in a batch.
    :param batch_window_seconds: longest wait for a batch to fill.
    :param clock: monotonic.
    """

    def __init__(
        self, batch_size: int, batch_window_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._batch_size = batch_size
        self._batch_window_seconds = batch_window_seconds
        self._clock = clock
        self._piles: OrderedDict[Hashable, _Pile] = OrderedDict()
        self._full: dict[Hashable, None] = {}
        self._added = asyncio.Event()

    def add(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries in the order in which they came."""
        now = self._clock()
        for lane, group in itertools.groupby(deliveries, key=attrgetter("lane")):
            pile = self._piles.get(lane)
            if pile is None:
                pile = self._piles[lane] = _Pile(now)
            pile.deliveries.extend(group)
            if len(pile.deliveries) >= self._batch_size:
                self._full[lane] = None
        self._added.set()

    async def next(self) -> list[Delivery]:
        """Return the next batch's deliveries: the oldest whose time is up, or a full one."""
        while True:
            self._added.clear()
            wait = None
            if self._piles:
                # Time goes before size: a lane that is always full must not keep the others waiting.
                lane, oldest = next(iter(self._piles.items()))
                wait = oldest.since + self._batch_window_seconds - self._clock()
                if wait <= 0:
                    return self._take(lane)
            if self._full:
                return self._take(next(iter(self._full)))
            await wait_until_set(self._added, wait)

    @property
    def waiting(self) -> int:
        """How many batches what waits will make at least."""
        return sum(max(1, len(pile.deliveries) // self._batch_size) for pile in self._piles.values())

    def drain(self) -> list[Delivery]:
        """Take out everything that waits."""
        waiting = [delivery for pile in self._piles.values() for delivery in pile.deliveries]
        self._piles.clear()
        self._full.clear()
        return waiting

    def drop(self, is_void: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out what ``is_void`` says, and return it."""
        kept: list[Delivery] = []
        dropped: list[Delivery] = []
        for delivery in self.drain():
            (dropped if is_void(delivery) else kept).append(delivery)
        self.add(kept)
        return dropped

    def _take(self, lane: Hashable) -> list[Delivery]:
        pile = self._piles[lane]
        self._full.pop(lane, None)
        if len(pile.deliveries) <= self._batch_size:
            del self._piles[lane]
            return list(pile.deliveries)
        taken = [pile.deliveries.popleft() for _ in range(self._batch_size)]
        # The rest goes to the end of the line, with a wait of its own, so that one busy lane doesn't starve the others.
        pile.since = self._clock()
        self._piles.move_to_end(lane)
        if len(pile.deliveries) >= self._batch_size:
            self._full[lane] = None
        return taken

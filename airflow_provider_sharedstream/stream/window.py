"""How many batches may be with the watchers at once; it adapts to how fast Airflow stores events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from airflow_provider_sharedstream.stream.delivery import Batch
from airflow_provider_sharedstream.stream.waiting import wait_until_set

LOOK_SECONDS = 0.1
"""How often a full window is looked through for batches that wait for a slow watcher only."""


class BatchWindow:
    """Bounds the batches whose events wait to be stored.

    All streams of a triggerer share one supervisor that stores some fifty events a second, one event per watcher and
    batch. The window doubles per round trip until storing takes longer than the target, then moves as TCP does:
    halved above the target, one more per round trip below it.

    A batch that waits for a watcher's own slowness burdens the supervisor no more once the quick watchers' events are
    stored. When that is can't be seen; it is taken to be as long after the latest of them came back as storing takes
    at present.

    :param ceiling: never more batches than this with the watchers, slow ones included; below Airflow's queue per
        watcher.
    :param target_seconds: how long storing a batch's events should take at most.
    :param watchers: how many watchers listen now.
    :param start: the first window.
    :param clock: monotonic.
    """

    def __init__(
        self,
        ceiling: int,
        target_seconds: float,
        *,
        watchers: Callable[[], int] = lambda: 0,
        start: int = 8,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ceiling = max(1, ceiling)
        self._target_seconds = target_seconds
        self._watchers = watchers
        self._clock = clock
        self._size = float(min(start, self._ceiling))
        self._doubling = True
        self._shrunk_at = float("-inf")
        self._usual_seconds = 1.0
        self._left = asyncio.Event()
        self._waiting: dict[Batch, None] = {}
        self._slow: dict[Batch, None] = {}

    @property
    def size(self) -> int:
        """Batches whose events may wait now."""
        return int(self._size)

    @property
    def offered(self) -> int:
        """Batches that are with the watchers."""
        return len(self._waiting) + len(self._slow)

    async def place(self) -> None:
        """Wait until one more batch may be offered."""
        while len(self._waiting) >= self.size or self.offered >= self._ceiling:
            self._let_slow_ones_go()
            if len(self._waiting) < self.size and self.offered < self._ceiling:
                return
            self._left.clear()
            await wait_until_set(self._left, LOOK_SECONDS)

    def offer(self, batch: Batch) -> None:
        """Note that ``batch`` goes to the watchers."""
        self._waiting[batch] = None

    def conclude(self, batch: Batch, *, seconds: float) -> None:
        """Note that every watcher is done with ``batch``, and learn from how it went.

        :param seconds: what storing its events took.
        """
        self._grow_if_full(batch, seconds)
        self._waiting.pop(batch, None)
        self._slow.pop(batch, None)
        self._usual_seconds += (min(seconds, self._target_seconds) - self._usual_seconds) / 8
        # A batch from before the last shrinking tells of the old window.
        if seconds > self._target_seconds and batch.offered_at >= self._shrunk_at:
            self._size = max(1.0, self._size / 2)
            self._doubling = False
            self._shrunk_at = self._clock()
        self._left.set()

    def probe(self) -> None:
        """Go down to one batch: what follows may turn out to be impossible to settle."""
        self._size = 1.0
        self._doubling = True

    def _grow_if_full(self, batch: Batch, seconds: float) -> None:
        if batch in self._waiting and len(self._waiting) >= self.size and seconds <= self._target_seconds:
            self._size = min(float(self._ceiling), self._size + (1.0 if self._doubling else 1.0 / self._size))

    def _let_slow_ones_go(self) -> None:
        watchers, now = self._watchers(), self._clock()
        for batch in list(self._waiting):
            returns = [receipt.returned_at for receipt in batch.receipts if receipt.returned_at is not None]
            if returns and len(returns) < watchers and now - max(returns) > 1.5 * self._usual_seconds:
                self._grow_if_full(batch, 0.0)
                del self._waiting[batch]
                self._slow[batch] = None

"""How much may be open at once: permits for messages, and a window for batches.

Airflow gives no back-pressure: a watcher whose queue is full is failed, healthy or not. So a permit is taken
before a message is received and freed only when its fate with the broker is sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from airflow_provider_sharedstream.stream.delivery import Delivery


class InFlightBudget:
    """Permits by messages and bytes, and the set of deliveries that hold them.

    The size of a message is known only once it is here, so bytes close the door after the fact: one round of
    receives may go over.

    :param max_messages: most messages received and not settled.
    :param max_bytes: no further receive while those messages hold more bytes than this.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._permits = max_messages
        self._freed = asyncio.Event()
        self.open: dict[Delivery, None] = {}
        self.bytes = 0

    async def acquire(self, want: int) -> int:
        """Wait until a worthwhile number of permits is free; return how many of ``want`` are granted.

        Worthwhile is all of ``want``, or a quarter of the budget where that is less: near saturation, a receive for
        each freed permit would cost one call a message.
        """
        worthwhile = max(1, min(want, self._max_messages // 4))
        while self._permits < worthwhile or self.bytes >= self._max_bytes:
            self._freed.clear()
            await self._freed.wait()
        granted = min(want, self._permits)
        self._permits -= granted
        return granted

    def give_back(self, permits: int) -> None:
        """Return permits that a receive did not use."""
        if permits:
            self._permits += permits
            self._freed.set()

    def admit(self, deliveries: Iterable[Delivery]) -> None:
        """Note deliveries that came under permits already taken."""
        for delivery in deliveries:
            self.open[delivery] = None
            self.bytes += delivery.size

    def free(self, deliveries: Iterable[Delivery]) -> None:
        """Free the permits of deliveries whose fate is sealed; others are ignored, so that it may be called twice."""
        for delivery in deliveries:
            if delivery in self.open:
                del self.open[delivery]
                self.bytes -= delivery.size
                self._permits += 1
        self._freed.set()

    def __len__(self) -> int:
        return len(self.open)


class BatchWindow:
    """How many batches may be with the watchers at once; it adapts to how fast Airflow stores events.

    All streams of a triggerer share one supervisor that stores some fifty events a second, one event per watcher and
    batch. The window doubles per round trip until storing takes longer than the target, then moves as TCP does:
    halved above the target, one more per round trip below it.

    :param ceiling: never more than this; it stays below Airflow's queue per watcher.
    :param target_seconds: how long storing a batch's events should take at most.
    :param start: the first window.
    """

    def __init__(self, ceiling: int, target_seconds: float, *, start: int = 8) -> None:
        self._ceiling = max(1, ceiling)
        self._target_seconds = target_seconds
        self._size = float(min(start, self._ceiling))
        self._doubling = True
        self._shrunk_at = float("-inf")
        self._left = asyncio.Event()
        self.entered = 0

    @property
    def size(self) -> int:
        """Batches that may be with the watchers now."""
        return int(self._size)

    async def enter(self) -> None:
        """Wait for a place and take it."""
        while self.entered >= self.size:
            self._left.clear()
            await self._left.wait()
        self.entered += 1

    def leave(self, *, offered_at: float, now: float, seconds: float) -> None:
        """Give a place back and learn from how it went.

        :param offered_at: when the batch was handed to the watchers; a batch from before the last shrinking
            tells of the old window and changes nothing.
        :param now: the same clock's time now.
        :param seconds: what storing its events took.
        """
        was_full = self.entered >= self.size
        self.entered -= 1
        if seconds > self._target_seconds:
            if offered_at >= self._shrunk_at:
                self._size = max(1.0, self._size / 2)
                self._doubling = False
                self._shrunk_at = now
        elif was_full:
            self._size = min(float(self._ceiling), self._size + (1.0 if self._doubling else 1.0 / self._size))
        self._left.set()

    def probe(self) -> None:
        """Go down to one batch: what follows may turn out to be impossible to settle."""
        self._size = 1.0
        self._doubling = True

"""How many messages may be open at once.

Airflow gives no back-pressure: a watcher whose queue is full is failed, healthy or not. So a permit is taken
before a message is received and freed only when its fate with the broker is sealed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from operator import attrgetter

from airflow_provider_sharedstream.stream.delivery import Delivery

_SIZE = attrgetter("size")


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

    def admit(self, deliveries: Sequence[Delivery]) -> None:
        """Note deliveries that came under permits already taken."""
        self.open.update(dict.fromkeys(deliveries))
        self.bytes += sum(map(_SIZE, deliveries))

    def free(self, deliveries: Iterable[Delivery]) -> None:
        """Free the permits of deliveries whose fate is sealed; others are ignored, so that it may be called twice."""
        freed = [delivery for delivery in deliveries if delivery in self.open]
        for delivery in freed:
            del self.open[delivery]
        self.bytes -= sum(map(_SIZE, freed))
        self._permits += len(freed)
        self._freed.set()

    def __len__(self) -> int:
        return len(self.open)

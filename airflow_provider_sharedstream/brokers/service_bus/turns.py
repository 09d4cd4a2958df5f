"""Who may use a link to Service Bus now.

The SDK reads and writes under one lock, and waits for a frame with the lock in its hands. So settlements beside a
receive that waits get 5 a second done, where 2,000 are possible; and two management requests at once mix up each
other's answers. Hence turns: one call at a time, and a receive that has nothing gives way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from airflow_provider_sharedstream.stream.waiting import wait_until_set

LONGEST_UNHEARD_SECONDS = 1.0
"""How long a receive lets go before it what has to be told."""


class Turns:
    """One link's."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._claims = 0
        self._claims_gone = asyncio.Event()
        self._heard_at = 0.0
        self.claimed = asyncio.Event()
        """Set while somebody waits who has something to tell."""

    @asynccontextmanager
    async def speaking(self) -> AsyncIterator[None]:
        """Take a turn to tell something."""
        self._claims += 1
        self.claimed.set()
        try:
            await self._lock.acquire()
        finally:
            self._claims -= 1
            if not self._claims:
                self.claimed.clear()
                self._claims_gone.set()
        try:
            yield
        finally:
            self._lock.release()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Take a turn to receive, after what has to be told; but however much that is, it doesn't take for ever."""
        loop = asyncio.get_running_loop()
        until = self._heard_at + LONGEST_UNHEARD_SECONDS
        while self._claims and (left := until - loop.time()) > 0:
            self._claims_gone.clear()
            await wait_until_set(self._claims_gone, left)
        await self._lock.acquire()
        try:
            yield
        finally:
            self._heard_at = loop.time()
            self._lock.release()

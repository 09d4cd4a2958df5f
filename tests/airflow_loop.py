"""Airflow's triggerer, reduced to what concerns shared streams: the real `SharedStreamManager`, and the runner's
steps around it.

The steps of `TriggerRunner.run_trigger` are kept in their order: the event is logged (an await), then bound and
queued with no await in between, and confirmed some time after it is stored.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

LONG_SECONDS = 60.0
"""How long a condition may take on a busy machine before a test gives up."""


class Watcher:
    """One trigger that runs."""

    def __init__(self, number: int, trigger: BrokerEventTrigger) -> None:
        self.number = number
        self.trigger = trigger
        self.events: list[TriggerEvent] = []
        """Stored."""
        self.restarts = 0
        self.failure: BaseException | None = None
        self.task: asyncio.Task[None] | None = None

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [message for event in self.events for message in event.payload["messages"]]

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.messages]

    @property
    def bodies(self) -> list[Any]:
        return [message["body"] for message in self.messages]


class Triggerer:
    """Runs watchers, stores their events one by one, and confirms them.

    :param store_seconds: what storing one event takes; the store is one for all watchers, as in Airflow.
    :param confirm_seconds: how often confirmations reach the manager.
    :param ack_timeout: Airflow's.
    :param queue_size: Airflow's, per watcher.
    :param restart_seconds: how soon a watcher that failed is started again; Airflow takes 2.
    """

    def __init__(
        self,
        *,
        store_seconds: float = 0.0,
        confirm_seconds: float = 0.02,
        ack_timeout: float = 300.0,
        queue_size: int = 1024,
        restart_seconds: float = 0.2,
    ) -> None:
        self.manager = SharedStreamManager(max_subscriber_queue=queue_size, ack_timeout=ack_timeout)
        self.watchers: list[Watcher] = []
        self.storing = asyncio.Event()
        """Cleared: nothing is stored, as when the database is away."""
        self.storing.set()
        self.on_event: Callable[[Watcher, TriggerEvent], None] = lambda watcher, event: None
        self._store_seconds = store_seconds
        self._confirm_seconds = confirm_seconds
        self._restart_seconds = restart_seconds
        self._outbound: deque[tuple[Watcher, TriggerEvent, int | None]] = deque()
        self._supervisor = asyncio.create_task(self._store(), name="test-supervisor")
        self._numbers = 0

    def start(self, trigger: BrokerEventTrigger, *, restart: bool = False) -> Watcher:
        """Start a watcher; with `restart`, one that fails is started again after a while, as Airflow does."""
        self._numbers += 1
        watcher = Watcher(self._numbers, trigger)
        trigger.trigger_id = watcher.number
        self.watchers.append(watcher)
        watcher.task = asyncio.create_task(self._run(watcher, restart), name=f"test-watcher-{watcher.number}")
        return watcher

    async def cancel(self, watcher: Watcher) -> None:
        assert watcher.task is not None
        watcher.task.cancel()
        await asyncio.gather(watcher.task, return_exceptions=True)

    async def stop(self) -> None:
        for watcher in self.watchers:
            await self.cancel(watcher)
        await self.manager.stop_all()
        self._supervisor.cancel()
        await asyncio.gather(self._supervisor, return_exceptions=True)

    async def _run(self, watcher: Watcher, restart: bool) -> None:
        while True:
            try:
                await self._run_trigger(watcher)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                watcher.failure = error
                if not restart:
                    return
            watcher.restarts += 1
            await asyncio.sleep(self._restart_seconds)

    async def _run_trigger(self, watcher: Watcher) -> None:
        key = watcher.trigger.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=watcher.number, trigger=watcher.trigger, key=key)
        try:
            async for event in watcher.trigger.filter_shared_stream(stream):
                await asyncio.sleep(0)  # the runner awaits its log here
                seq = self.manager.bind_pending_event(trigger_id=watcher.number, key=key)
                self._outbound.append((watcher, event, seq))
        finally:
            await self.manager.unsubscribe(watcher.number, key)

    async def _store(self) -> None:
        while True:
            await asyncio.sleep(self._confirm_seconds)
            stored: list[int] = []
            for _ in range(len(self._outbound)):
                watcher, event, seq = self._outbound.popleft()
                await self.storing.wait()
                if self._store_seconds:
                    await asyncio.sleep(self._store_seconds)
                watcher.events.append(event)
                self.on_event(watcher, event)
                if seq is not None:
                    stored.append(seq)
            self.manager.confirm_persisted(stored)


@asynccontextmanager
async def triggerer(**settings: Any) -> AsyncIterator[Triggerer]:
    """A triggerer that is stopped at the end."""
    running = Triggerer(**settings)
    try:
        yield running
    finally:
        await running.stop()


async def until(condition: Callable[..., Any], what: str = "the condition", seconds: float = LONG_SECONDS) -> None:
    """Wait until `condition()` holds; an awaitable that it returns is awaited. Raises AssertionError when time is
    up.
    """
    deadline = time.monotonic() + seconds
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(0.05)


def repeated(values: Iterable[Any]) -> list[Any]:
    """Values that occur more than once."""
    seen: set[Any] = set()
    return [value for value in values if value in seen or seen.add(value)]  # type: ignore[func-returns-value]

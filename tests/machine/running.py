"""Watchers on queues in memory, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from airflow_provider_sharedstream.brokers.memory import QUEUES, MemoryConsumer, MemoryQueue
from airflow_provider_sharedstream.stream.cohort import cohort_of
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.triggers.arguments import REQUIRED, TEXT, Argument
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from tests.airflow_loop import Triggerer, Watcher

NUMBERS = itertools.count()
CONSUMERS: dict[str, Callable[[], BrokerConsumer]] = {}
"""How to reach a queue; in memory where nothing is said."""
SETTINGS: dict[str, dict[str, Any]] = {}
"""Settings of a queue's streams that no trigger has an argument for."""
PRODUCERS: dict[str, list[BrokerStreamProducer]] = {}
"""Every producer that a queue has had."""


class QueueTrigger(BrokerEventTrigger):
    """A watcher of a queue in memory."""

    producer_class = BrokerStreamProducer
    ARGUMENTS = {"queue": Argument(REQUIRED, TEXT)}

    def __init__(self, queue: str, **common: Any) -> None:
        super().__init__(common, queue=queue)

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        trigger = cls(**kwargs)
        queue = trigger.arguments["queue"]
        scopes = trigger.allowed_arguments()
        stream = {name: value for name, value in trigger.arguments.items() if scopes[name].scope == "stream"}
        key = trigger.shared_stream_key()
        producer = BrokerStreamProducer(
            CONSUMERS.get(queue, lambda: MemoryConsumer(queue))(),
            StreamSettings(**{**stream, **SETTINGS.get(queue, {})}),
            cohort=cohort_of(key),
            description=str(key),
            clock=asyncio.get_running_loop().time,
        )
        PRODUCERS.setdefault(queue, []).append(producer)
        return producer


class VirtualTriggerer(Triggerer):
    """A triggerer in virtual time.

    :param log_seconds: what the runner's log takes, which it awaits between an event and its being taken over.
    :param restart_seconds: after so long a trigger that failed is started again.
    """

    def __init__(self, *, log_seconds: float = 0.0, restart_seconds: float = 2.0, **settings: Any) -> None:
        super().__init__(**{"confirm_seconds": 0.1, **settings})
        self.manager._now = time.monotonic
        self._log_seconds = log_seconds
        self._restart_seconds = restart_seconds
        self.logging = 0
        """Events that the runner's log has just now."""

    async def _run_trigger(self, watcher: Watcher) -> None:
        key = watcher.trigger.shared_stream_key()
        stream = self.manager.subscribe(trigger_id=watcher.number, trigger=watcher.trigger, key=key)
        try:
            async for event in watcher.trigger.filter_shared_stream(stream):
                self.logging += 1
                try:
                    await asyncio.sleep(self._log_seconds)
                finally:
                    self.logging -= 1
                seq = self.manager.bind_pending_event(trigger_id=watcher.number, key=key)
                self._outbound.append((watcher, event, seq))
        except Exception:
            await asyncio.sleep(self._restart_seconds)
            raise
        finally:
            await self.manager.unsubscribe(watcher.number, key)


@asynccontextmanager
async def triggerer(**settings: Any) -> AsyncIterator[VirtualTriggerer]:
    running = VirtualTriggerer(**settings)
    try:
        yield running
    finally:
        await running.stop()


def new_queue(settings: dict[str, Any] | None = None, **properties: Any) -> tuple[str, MemoryQueue]:
    """A queue of its own for a test; `settings` of its streams."""
    name = f"queue-{next(NUMBERS)}"
    QUEUES[name] = MemoryQueue(**properties)
    SETTINGS[name] = settings or {}
    MemoryQueue.reachable = True
    return name, QUEUES[name]


def publish(queue: MemoryQueue, count: int, start: int = 0, key: str | None = None, **more: Any) -> None:
    for number in range(start, start + count):
        queue.publish(json.dumps({"n": number, **more}).encode(), key=key)


def producer_of(queue: str) -> BrokerStreamProducer:
    """The latest."""
    return PRODUCERS[queue][-1]


def numbers(watcher: Watcher) -> list[int]:
    return [body["n"] for body in watcher.bodies]


def assert_at_rest(producer: BrokerStreamProducer, *, abandoned: bool = False) -> None:
    """Of a stream that has been closed: nothing is open, and nothing is remembered of what was.

    `abandoned`: batches were with watchers that left, so that Airflow never told what became of them.
    """
    budget = producer.holdings.budget
    assert len(budget) == 0, f"{len(budget)} open"
    assert budget.bytes == 0
    assert budget._permits == producer.settings.max_in_flight, "permits were lost or made"
    assert not producer.holdings.decided
    assert not producer.holdings.settlement._queue
    assert not producer.holdings.settlement._retries._backoffs
    assert not producer.holdings.settlement._retries._refused
    assert not producer.holdings.settlement._calls
    assert not producer.holdings.leases._renew_at
    assert not producer.holdings.assembler._piles
    assert abandoned or producer.window.offered == 0
    if not producer.consumer.capabilities.stragglers:
        assert len(producer.holdings.lanes) == 0

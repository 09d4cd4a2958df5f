"""Calls of the Azure SDK over one receiver, which can be ended, and end when nothing gets done."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from airflow_provider_sharedstream.brokers.service_bus.errors import NoAnswer, NotConnected, is_busy, is_lock_lost

ANSWER_SECONDS = 20.0
"""Longest silence of Service Bus while something waits for its answer."""
CLOSE_GRACE_SECONDS = 1.0
GIVE_UP_SECONDS = 2.0

T = TypeVar("T")


class Calls:
    """One receiver's. A receiver that has broken stays broken, and no further call is made."""

    def __init__(self) -> None:
        self.trouble: BaseException | None = None
        """Why nothing can be done any more."""
        self.steps = 0
        """Raised by a call of many steps with each of them: it is under way, however long it takes."""
        self.closed = False
        self._running: set[asyncio.Task[Any]] = set()

    async def make(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return what a call of the SDK returns.

        :param seconds: longest time in which nothing gets done.
        """
        task = self.start(call)
        try:
            steps = -1
            while not task.done() and steps != self.steps:
                steps = self.steps
                await asyncio.wait((task,), timeout=seconds)
            in_time = task.done()
        finally:
            await give_up(task)
        return self.result(task, seconds, in_time=in_time)

    def start(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call in a task of its own, so that it can be ended."""
        if self.closed or self.trouble is not None:
            call.close()
            raise NotConnected(f"the link to Service Bus has broken: {self.trouble}" if self.trouble else "closed")
        task = asyncio.create_task(call, name="service-bus-call")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def result(self, task: asyncio.Task[T], seconds: float, *, in_time: bool) -> T:
        """Return what a call that has ended has returned, or raise why it returned nothing."""
        if not in_time:
            self.trouble = self.trouble or NoAnswer(f"Service Bus has not answered for {seconds:.0f} s")
            raise self.trouble
        if task.cancelled():
            raise NotConnected("the link was closed under a call")
        if (error := task.exception()) is None:
            return task.result()
        self.note(error)
        raise NotConnected(f"the link was closed under a call: {error}") if self.closed else error

    def note(self, error: BaseException) -> None:
        """Note that the receiver has broken, where ``error`` says so."""
        if not is_busy(error) and not is_lock_lost(error):
            self.trouble = self.trouble or error

    async def end(self) -> None:
        """End all that run, after a moment's grace."""
        if self._running:
            await asyncio.wait(self._running, timeout=CLOSE_GRACE_SECONDS)
        await asyncio.gather(*map(give_up, self._running))

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._running.discard(call)
        if not call.cancelled():
            call.exception()


async def give_up(call: asyncio.Task[Any], seconds: float = GIVE_UP_SECONDS) -> None:
    """End a call. Before Python 3.12, ``asyncio.wait_for``, which the SDK uses throughout, may swallow a cancellation.

    :param seconds: before it is cancelled once more: the SDK lets go of what it has opened half way, unless it is
        cancelled in that, too.
    """
    for _ in range(2):
        if not call.done():
            call.cancel()
            await asyncio.wait((call,), timeout=seconds)

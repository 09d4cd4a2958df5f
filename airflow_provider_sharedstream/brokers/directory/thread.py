"""Calls that may hang for ever, as on a network mount whose server is gone, kept away from the event loop.

Each call has a daemon thread of its own, so that one that hangs holds up neither another trigger nor the end of the
process; nothing is left over where none hangs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def in_thread(function: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run ``function`` in a thread; a cancelled wait abandons it.

    :param name: the thread's.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    # An abandoned call's exception is nobody's.
    future.add_done_callback(lambda done: done.cancelled() or done.exception())

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def tell(setter: Callable[[Any], None], value: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: the process is ending
            loop.call_soon_threadsafe(settle, setter, value)

    def run() -> None:
        try:
            made = function()
        except BaseException as error:
            tell(future.set_exception, error)
        else:
            tell(future.set_result, made)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class StillRunning(TimeoutError):
    """A call takes longer than its caller waits.

    :param what: the call.
    :param idle_seconds: since it last made progress.
    """

    def __init__(self, what: str, idle_seconds: float) -> None:
        super().__init__(f"{what} has not come on for {idle_seconds:.0f} s: does a network mount not answer?")
        self.idle_seconds = idle_seconds


class OneThread:
    """One call at a time. A call that hangs is waited for again and again, and not joined by a second.

    :param name: of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._call: asyncio.Future[Any] | None = None
        self._what = ""
        self._progress_at = 0.0

    def progress(self) -> None:
        """Called by what runs, whenever it comes on."""
        self._progress_at = time.monotonic()

    async def call(self, what: str, function: Callable[[], T], seconds: float) -> T:
        """Return what ``function`` returns.

        :param what: says what is done. Where the same is still being done for a caller that gave up waiting, its result
            is taken over; the result of anything else is waited for and dropped.
        :param seconds: how long to wait.
        :raises StillRunning: this, or what was there before, takes longer.
        """
        deadline = time.monotonic() + seconds
        if self._call is not None and self._what != what:
            await self._wait(deadline)
            self._call = None
        if self._call is None:
            self.progress()
            self._what = what
            self._call = in_thread(function, self._name)
        await self._wait(deadline)
        call, self._call = self._call, None
        result: T = call.result()
        return result

    async def _wait(self, deadline: float) -> None:
        assert self._call is not None
        done, _ = await asyncio.wait({self._call}, timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            raise StillRunning(self._what, time.monotonic() - self._progress_at)

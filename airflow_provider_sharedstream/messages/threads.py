"""Threads for users' functions: our own, few, and never in the way of the process's end.

The executors that a triggerer has already are shared by everybody in it (asgiref's is one thread for all), and their
threads are joined at exit, so that one function that hangs would hold up the others, and the shutdown.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

IDLE_SECONDS = 30.0
"""How long a thread waits for the next call before it ends."""


class Call:
    """A function to be run, and who waits for it."""

    __slots__ = ("context", "function", "loop", "result", "started")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop) -> None:
        self.function = function
        self.loop = loop
        self.context = contextvars.copy_context()
        self.started: asyncio.Future[None] = loop.create_future()
        self.result: asyncio.Future[Any] = loop.create_future()

    def run(self) -> None:
        self._tell(self.started, None, None)
        try:
            made = self.context.run(self.function)
        except BaseException as error:  # SystemExit too: it must not end the thread in silence
            self._tell(self.result, None, error)
        else:
            self._tell(self.result, made, None)

    def _tell(self, future: asyncio.Future[Any], made: Any, error: BaseException | None) -> None:
        def settle() -> None:
            if future.done():
                return  # nobody waits any more
            if error is None:
                future.set_result(made)
            elif isinstance(error, Exception) and not isinstance(error, StopIteration):
                future.set_exception(error)
            else:  # these would unwind the event loop, or can't be set on a future
                future.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

        with suppress(RuntimeError):  # the loop is closed: the process is ending
            self.loop.call_soon_threadsafe(settle)


class DaemonThreads:
    """At most ``limit`` daemon threads that run functions one by one; a function that hangs keeps its thread.

    :param limit: most threads at once.
    :param name: their names' beginning.
    """

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self._lock = threading.Condition()
        self._waiting: deque[Call] = deque()
        self._threads = 0
        self._idle = 0

    def submit(self, function: Callable[[], Any]) -> Call:
        """Queue ``function``; the two futures of what comes back say when it starts and what it returned."""
        call = Call(function, asyncio.get_running_loop())
        with self._lock:
            self._waiting.append(call)
            if self._idle >= len(self._waiting):
                self._lock.notify()
            elif self._threads < self.limit:
                self._threads += 1
                threading.Thread(target=self._work, name=f"{self.name}-{self._threads}", daemon=True).start()
        return call

    def withdraw(self, call: Call) -> bool:
        """Take back a call that hasn't started; return whether that was so."""
        with self._lock:
            try:
                self._waiting.remove(call)
            except ValueError:
                return False
        return True

    def _work(self) -> None:
        while (call := self._next()) is not None:
            call.run()
            del call  # a waiting thread keeps no message alive

    def _next(self) -> Call | None:
        with self._lock:
            self._idle += 1
            if not self._waiting:
                self._lock.wait_for(lambda: self._waiting, IDLE_SECONDS)
            self._idle -= 1
            if self._waiting:
                return self._waiting.popleft()
            self._threads -= 1
            return None

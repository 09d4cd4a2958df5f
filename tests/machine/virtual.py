"""An event loop whose time is a number: it jumps to the next timer when there is nothing else to do.

Minutes of backoff cost milliseconds, no test depends on how busy the computer is, and a wait that nothing will ever end
is an error at once instead of a hang.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar
from unittest import mock

P = ParamSpec("P")
T = TypeVar("T")


LAST_DAY = 1000.0 + 24 * 3600.0


class NothingWillHappen(AssertionError):
    """Every task waits, and no timer is set: something was forgotten to be woken."""


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        events = super().select(0)
        if events or timeout == 0:
            return events
        if timeout is None:
            raise NothingWillHappen("every task waits, and no timer is set")
        self.now += timeout
        if self.now > LAST_DAY:
            raise NothingWillHappen("a day has passed, and the test still waits")
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; not for threads and sockets."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(scenario: Coroutine[Any, Any, T], debug: bool = False) -> T:
    """Run `scenario` in virtual time; `time.monotonic()` is virtual too.

    An exception that nobody retrieved, or a task that was destroyed while it waited, fails the run.
    """
    complaints: list[dict[str, Any]] = []
    # Python 3.11's; the checker looks at all as at 3.10.
    with asyncio.Runner(loop_factory=VirtualLoop, debug=debug) as runner:  # type: ignore[attr-defined]
        loop = runner.get_loop()
        loop.set_exception_handler(lambda _, context: complaints.append(context))
        with mock.patch.object(time, "monotonic", loop.time):
            result: T = runner.run(scenario)
    assert not complaints, complaints
    return result


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Decorate an asynchronous test."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(test(*args, **kwargs))

    return wrapper


def now() -> float:
    """Virtual time."""
    return asyncio.get_running_loop().time()


async def until(condition: Callable[[], Any], what: str = "the condition", seconds: float = 3600.0) -> float:
    """Wait until `condition()` holds; return the seconds that it took."""
    started = now()
    while not condition():
        assert now() - started < seconds, f"waited {seconds:g} virtual seconds for {what}"
        await asyncio.sleep(0.01)
    return now() - started


async def settle_down(turns: int = 20) -> None:
    """Let every task that can run do so, without time passing."""
    for _ in range(turns):
        await asyncio.sleep(0)

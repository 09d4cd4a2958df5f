"""Calls to an adapter, and what its SDK may do to a caller, kept away from the machine's loops.

A client that is closed under a call cancels it, and a loop that takes this for its own cancellation ends in silence. An
SDK that uses ``asyncio.wait_for`` (Python before 3.12) swallows a cancellation that comes as its wait ends, and a loop
that is never cancelled never ends. So every call runs in a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from airflow_provider_sharedstream.stream.consumer import BrokerConsumer

log = logging.getLogger(__name__)

T = TypeVar("T")

LONGEST_SECONDS = 120.0
"""Of a connect, a receive or a renewal: several times what any SDK allows itself before it gives up."""
SAY_AFTER_SECONDS = 60.0
CANCEL_SECONDS = 2.0
"""How long a cancelled call is waited for."""


class CallAborted(ConnectionError):
    """The client gave a call up by itself."""


class CallHangs(ConnectionError):
    """A call has not come back in time."""


_abandoned: set[asyncio.Task[Any]] = set()


async def call(
    what: str,
    coroutine: Coroutine[Any, Any, T],
    *,
    seconds: float | None = LONGEST_SECONDS,
    late: Callable[[T], None] | None = None,
) -> T:
    """Return what ``coroutine`` returns.

    :param what: names the call in errors and logs.
    :param seconds: after so long it is cancelled; None: never, but it is said that it doesn't come back.
    :param late: takes what comes back while it is being cancelled.
    :raises CallAborted: it was cancelled, and not by us.
    :raises CallHangs: time is up.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        waited = 0.0
        while not task.done() and (seconds is None or waited < seconds):
            step = SAY_AFTER_SECONDS if seconds is None else seconds - waited
            await asyncio.wait((task,), timeout=step)
            waited += step
            if seconds is None and not task.done():
                log.warning("%s has not come back for %.0f s; it is waited for", what, waited)
    except asyncio.CancelledError:
        await _give_up(task, late)
        raise
    if not task.done():
        await _give_up(task, late)
        raise CallHangs(f"{what} has not come back for {seconds:g} s")
    if task.cancelled():
        raise CallAborted(f"{what} was given up by the client")
    return task.result()


async def _give_up(task: asyncio.Task[T], late: Callable[[T], None] | None) -> None:
    _abandoned.add(task)  # the loop keeps weak references only
    task.add_done_callback(_forget)
    task.cancel()
    await asyncio.wait((task,), timeout=CANCEL_SECONDS)
    if late is not None and task.done() and not task.cancelled() and task.exception() is None:
        late(task.result())


def _forget(task: asyncio.Task[Any]) -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


def is_transient(consumer: BrokerConsumer, error: BaseException) -> bool:
    """Whether ``error``, raised by a call to ``consumer``, may go away by itself."""
    if isinstance(error, (CallAborted, CallHangs)):
        return True
    try:
        return consumer.is_transient(error)
    except Exception:
        log.exception("An adapter can't judge an error")
        return False

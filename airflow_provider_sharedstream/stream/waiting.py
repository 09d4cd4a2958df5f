"""Waiting with a limit, without losing a cancellation."""

from __future__ import annotations

import asyncio


async def wait_until_set(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until ``event`` is set, or until time is up, which sets it: callers look for themselves what has happened.

    ``asyncio.wait_for`` swallows a cancellation that comes as the wait ends (Python before 3.12), and a loop that is
    never cancelled never ends.

    :param seconds: None: no limit.
    """
    if seconds is None:
        await event.wait()
        return
    alarm = asyncio.get_running_loop().call_later(seconds, event.set)
    try:
        await event.wait()
    finally:
        alarm.cancel()

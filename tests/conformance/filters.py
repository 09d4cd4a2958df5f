"""Functions that the suite's watchers apply to messages."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage

REJECTED: set[str] = set()
"""Bodies' `n` to reject."""
FAILED_ONCE: dict[str, int] = {}
"""How often each message has come to `fail_first`."""


def reject_tenth(message: Message) -> Any:
    if message.body["n"] % 10 == 0:
        raise RejectMessage(f"n={message.body['n']} is a tenth")
    return message.body


def reject_all(message: Message) -> Any:
    raise RejectMessage("refused: ünwanted")


def fail_first(message: Message) -> Any:
    """Fail on every tenth message the first time it comes."""
    FAILED_ONCE[message.id] = FAILED_ONCE.get(message.id, 0) + 1
    if message.body["n"] % 10 == 0 and FAILED_ONCE[message.id] == 1:
        raise RuntimeError("the first time")
    return message.body


def fail_always(message: Message) -> Any:
    raise RuntimeError("always")


async def slow(message: Message) -> Any:
    await asyncio.sleep(message.body.get("seconds", 0))
    return message.body

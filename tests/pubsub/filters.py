"""Functions that watchers in these tests apply."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from airflow_provider_sharedstream.messages import Message

SEEN: Counter[str] = Counter()
"""How often each message has come to one of these."""


async def three_seconds(message: Message) -> Any:
    await asyncio.sleep(3)
    return message.body


def explode_on_poison(message: Message) -> Any:
    if isinstance(message.body, dict) and message.body.get("poison"):
        raise ZeroDivisionError("poison")
    return message.body


def fail_every_twentieth_once(message: Message) -> Any:
    SEEN[message.id] += 1
    if message.body["n"] % 20 == 0 and SEEN[message.id] == 1:
        raise RuntimeError("the first time")
    return message.body

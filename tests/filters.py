"""Functions that watchers of several sources apply."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_sharedstream.messages import Message


async def three_seconds(message: Message) -> Any:
    await asyncio.sleep(3)
    return message.body


def explode_on_poison(message: Message) -> Any:
    if isinstance(message.body, dict) and message.body.get("poison"):
        raise ZeroDivisionError("poison")
    return message.body

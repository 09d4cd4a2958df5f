"""Functions that watchers in these tests apply."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage

BEGUN: list[Any] = []
"""Bodies of the messages that `held` has got."""
GO_ON = asyncio.Event()


def refuse(message: Message) -> Any:
    raise RejectMessage("unwanted")


async def held(message: Message) -> Any:
    """Hold the message until `GO_ON` is set."""
    BEGUN.append(message.body)
    await GO_ON.wait()
    return message.body

"""Functions that watchers apply to messages."""

from __future__ import annotations

from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage


async def reject_odd(message: Message) -> Any:
    if message.body["n"] % 2:
        raise RejectMessage("odd")
    return message.body


async def fail(message: Message) -> Any:
    raise RuntimeError("on purpose")

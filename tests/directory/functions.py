"""What watchers in these tests do with messages."""

from __future__ import annotations

from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage


def refuse_bad(message: Message) -> Any:
    if "bad" in message.id:
        raise RejectMessage("bad: größe stimmt nicht")
    return message.body


def fail(message: Message) -> Any:
    raise RuntimeError("always")

"""Functions that watchers in these tests apply."""

from __future__ import annotations

from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage


def reject_marked(message: Message) -> Any:
    """Refuse what says so, and what has no body."""
    if message.body is None or (isinstance(message.body, dict) and message.body.get("reject")):
        raise RejectMessage("it says so itself: ünwanted")
    return message.body


def fail_in_partition_0(message: Message) -> Any:
    if message.attributes["partition"] == 0:
        raise RuntimeError("partition 0 fails")
    return message.body

"""Functions that watchers in these tests apply."""

from __future__ import annotations

from collections import Counter
from typing import Any

from airflow_provider_sharedstream.messages import Message

SEEN: Counter[str] = Counter()
"""How often each message has come to one of these."""


def fail_every_twentieth_once(message: Message) -> Any:
    SEEN[message.id] += 1
    if message.body["n"] % 20 == 0 and SEEN[message.id] == 1:
        raise RuntimeError("the first time")
    return message.body

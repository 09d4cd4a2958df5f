"""How large an event may be.

Airflow sends all events that started a run to each of the run's tasks, when it starts: a megabyte in an event is a
megabyte times events times tasks through the API server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from airflow_provider_sharedstream.stream.message import Message

MAX_PAYLOAD_BYTES = 65_536
"""Default of ``max_payload_bytes``."""

OnOversize = Literal["split", "omit", "reject"]

BODY_OMITTED = "body_omitted"
"""Attribute of a message whose body was left out: how many bytes it had."""

_encode = msgspec.json.Encoder().encode


class Sized(NamedTuple):
    """A message and how many bytes of JSON it takes in a payload."""

    message: Message
    size: int


def sized(message: Message) -> Sized:
    """Measure ``message``."""
    return Sized(message, len(_encode(message)) + 1)


def without_body(measured: Sized) -> Sized:
    """Return the message without its body, and with the attribute :data:`BODY_OMITTED`.

    What it takes to fetch the body is in its id and attributes (topic, partition and offset; bucket and key; path),
    where the source keeps it after the message was accepted. A queue doesn't.
    """
    message, _ = measured
    body_bytes = len(_encode(message.body))
    return sized(message.replace(body=None, attributes={**message.attributes, BODY_OMITTED: {"bytes": body_bytes}}))


def split(measured: Sequence[Sized], max_payload_bytes: int | None) -> list[list[Message]]:
    """Return the messages in as few groups, in order, as have at most ``max_payload_bytes`` each.

    A message that is larger by itself is a group by itself. None: no limit.
    """
    if max_payload_bytes is None:
        return [[message for message, _ in measured]] if measured else []
    groups: list[list[Message]] = []
    room = 0
    for message, size in measured:
        if not groups or size > room:
            groups.append([])
            room = max_payload_bytes
        groups[-1].append(message)
        room -= size
    return groups

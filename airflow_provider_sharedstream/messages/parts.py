"""What the envelopes have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec

from airflow_provider_sharedstream.messages.bodies import Decoded
from airflow_provider_sharedstream.messages.content_type import Declared
from airflow_provider_sharedstream.stream.message import Message

Inner = Callable[["bytes | str | None", Declared, Mapping[str, Any]], Decoded]
"""Decodes a body that an envelope carries as text or bytes, given what is declared about it and the headers."""


def opened(message: Message, name: str, notes: Mapping[str, Any], decoded: Decoded) -> Message:
    """Return ``message`` with what was in the envelope as its body, and what else the envelope says as an attribute.

    :param name: the envelope's name, and the attribute's.
    :param notes: what the envelope says; what it leaves out is None and is dropped.
    """
    attributes = {key: value for key, value in message.attributes.items() if key != "body_encoding"}
    attributes[name] = {key: value for key, value in notes.items() if value is not None}
    if decoded.encoding is not None:
        attributes["body_encoding"] = decoded.encoding
    return message.replace(body=decoded.body, attributes=attributes)


def numbered(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of one delivery, each with an id of its own."""
    return [message.replace(id=f"{message.id}#{number}") for number, message in enumerate(messages)]


def moment_of(text: Any) -> datetime | None:
    """Return an RFC 3339 time in UTC; None for what isn't one."""
    if not isinstance(text, str):
        return None
    try:
        moment = msgspec.convert(text, datetime)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (msgspec.ValidationError, ValueError, OverflowError):
        return None

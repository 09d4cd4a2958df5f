"""From the Azure SDK's message to a delivery, and the note on a dead letter."""

from __future__ import annotations

import base64
import json
from collections.abc import Hashable, Mapping
from datetime import datetime, timezone
from typing import Any, NamedTuple
from uuid import UUID

from airflow_provider_sharedstream.stream.dead_letter import note
from airflow_provider_sharedstream.stream.delivery import Delivery

ATTRIBUTES = (
    "message_id",
    "sequence_number",
    "enqueued_sequence_number",
    "content_type",
    "subject",
    "correlation_id",
    "session_id",
    "partition_key",
    "to",
    "reply_to",
    "reply_to_session_id",
    "expires_at_utc",
    "dead_letter_reason",
    "dead_letter_error_description",
    "dead_letter_source",
)
"""What of the SDK's message is in the attributes, under the SDK's names, as far as it is set."""


class Held(NamedTuple):
    """A delivery's handle.

    :param link: the :class:`~.link.Link` over which it came.
    :param message: the SDK's, which knows its lock.
    :param session: the :class:`~.session.Session` of which it is; None: of none.
    """

    link: object
    message: Any
    session: Any = None


def delivery_of(held: Held, place: Mapping[str, str], namespace: str, *, lease_seconds: float) -> Delivery:
    """Return the delivery. Sequence numbers are an entity's own, so its id names the entity and the namespace.

    :param place: the entity's name in parts, for the attributes.
    :param namespace: the namespace's name.
    :param lease_seconds: how long its lock, or its session's, lasts from now.
    """
    message = held.message
    attributes: dict[str, Any] = dict(place)
    for name in ATTRIBUTES:
        if (value := getattr(message, name)) is not None:
            attributes[name] = value if type(value) is int else _text(value)
    body = _body(message)
    lane: Hashable | None = None if held.session is None else message.session_id
    return Delivery(
        id=f"{namespace}/{'/'.join(place.values())}/{message.sequence_number}",
        body=body,
        handle=held,
        headers={_text(name): _plain(value) for name, value in (message.application_properties or {}).items()},
        key=attributes.get("session_id") or attributes.get("partition_key"),
        published_at=message.enqueued_time_utc,
        # The protocol counts the deliveries that failed.
        delivery_count=(message.delivery_count or 0) + 1,
        attributes=attributes,
        lane=lane,
        # What Python holds for a message of the SDK and for this.
        size=len(body or b"") + 4096,
        lease_seconds=lease_seconds,
    )


def dead_letter_note(delivery: Delivery, origin: str) -> tuple[str, str]:
    """Return the reason, and the description: JSON that says who refused it, where and when.

    :param origin: where the delivery came from.
    """
    made = note(delivery, origin).as_dict()
    return str(made.pop("reason")), json.dumps(made, ensure_ascii=False)


def seconds_until(moment: datetime | None) -> float:
    """Return how long it is until ``moment``, by this machine's clock; 0 where there is none."""
    return 0.0 if moment is None else (moment - datetime.now(timezone.utc)).total_seconds()


def _body(message: Any) -> bytes | None:
    """Return the body as bytes: data as it came, AMQP values and sequences as JSON."""
    kind = message.body_type.name
    if kind == "DATA":
        return b"".join(message.body)
    if kind == "SEQUENCE":
        # Sections of one sequence.
        return _json([element for section in message.body for element in section])
    value = message.body
    if value is None:
        return None
    # A text and a binary are the same to the SDK: bytes.
    return bytes(value) if isinstance(value, (bytes, bytearray, memoryview)) else _json(value)


def _json(value: Any) -> bytes:
    return json.dumps(_plain(value), ensure_ascii=False).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    """Return an AMQP value as JSON knows it; bytes that aren't UTF-8 as they are in a header, in base64 below."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return data
    if isinstance(value, Mapping):
        return {_text(name): _below(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_below(one) for one in value]
    if isinstance(value, (UUID, datetime)):
        return _text(value)
    return value


def _below(value: Any) -> Any:
    plain = _plain(value)
    return base64.b64encode(plain).decode("ascii") if isinstance(plain, bytes) else plain


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if isinstance(value, datetime) else str(value)

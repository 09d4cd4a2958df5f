"""The copy of a rejected SQS message."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.dead_letter import PREFIX, note
from airflow_provider_sharedstream.stream.delivery import Delivery

log = logging.getLogger(__name__)

MOST_ATTRIBUTES = 10
"""Message attributes of one message (SQS developer guide, message metadata)."""
MOST_BYTES = 1_048_576
"""Of one message with its attributes, and of one SendMessageBatch (SQS message quotas)."""


class Copy(NamedTuple):
    """An entry of SendMessageBatch, and what it is the copy of."""

    delivery: Delivery
    entry: dict[str, Any]
    size: int


def copies_of(deliveries: Sequence[Delivery], origin: str, *, fifo: bool) -> list[Copy]:
    """Return the copies, each with the original's body and attributes and the note on it.

    :param origin: where the originals came from.
    :param fifo: whether the dead-letter queue is FIFO: it gets the original's group, and its id against duplicates.
    """
    return [_copy(number, delivery, origin, fifo) for number, delivery in enumerate(deliveries)]


def in_requests(copies: Sequence[Copy], most: int) -> Iterator[list[Copy]]:
    """Yield the copies in requests of at most ``most`` entries and :data:`MOST_BYTES`."""
    request: list[Copy] = []
    for copy in copies:
        if request and (len(request) == most or sum(c.size for c in request) + copy.size > MOST_BYTES):
            yield request
            request = []
        request.append(copy)
    if request:
        yield request


def _copy(number: int, delivery: Delivery, origin: str, fifo: bool) -> Copy:
    _, originals, _ = delivery.handle
    headers = {name: _text(value) for name, value in note(delivery, origin).as_headers().items()}
    originals = {name: _sendable(value) for name, value in originals.items() if name not in headers}
    attributes = {**originals, **headers}
    if len(attributes) > MOST_ATTRIBUTES:
        # The originals keep their place in one attribute, so that nothing of them is lost.
        attributes = {**headers, PREFIX + "headers": _text(json.dumps(originals, default=_base64))}
    body = str(delivery.body)
    size = len(body.encode()) + _size(attributes)
    if size > MOST_BYTES:
        # A message of the largest size has no room for a note; the log has it.
        log.warning("Dead letter %s is too large for its note: %s", delivery.id, delivery.reason)
        attributes = originals
        size = len(body.encode()) + _size(attributes)
    entry: dict[str, Any] = {"Id": str(number), "MessageBody": body, "MessageAttributes": attributes}
    if fifo:
        entry |= {"MessageGroupId": delivery.key or delivery.id, "MessageDeduplicationId": delivery.id}
    return Copy(delivery, entry, size)


def _text(value: str) -> dict[str, Any]:
    return {"DataType": "String", "StringValue": value or " "}


def _sendable(attribute: Mapping[str, Any]) -> dict[str, Any]:
    """Return a received attribute as it may be sent again."""
    wanted = ("DataType", "StringValue", "BinaryValue")
    return {name: attribute[name] for name in wanted if name in attribute}


def _size(attributes: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the bytes that attributes count for: name, type and value."""
    total = 0
    for name, attribute in attributes.items():
        total += len(name.encode())
        total += sum(len(part if isinstance(part, bytes) else str(part).encode()) for part in attribute.values())
    return total


def _base64(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")

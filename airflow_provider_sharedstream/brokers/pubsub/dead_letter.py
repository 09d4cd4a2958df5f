"""The copy of a rejected Pub/Sub message."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.dead_letter import note
from airflow_provider_sharedstream.stream.delivery import Delivery

log = logging.getLogger(__name__)

MOST_MESSAGES = 1_000
"""In one Publish; with the next four: https://cloud.google.com/pubsub/quotas#resource_limits"""
MOST_BYTES = 10_000_000
"""Of one message with its attributes, and of one Publish."""
MOST_ATTRIBUTES = 100
MOST_VALUE_BYTES = 1_024
ENVELOPE_BYTES = 500
"""What a request has besides its messages: the topic's name."""


class Copy(NamedTuple):
    """A message to publish, and what it is the copy of."""

    delivery: Delivery
    message: Any
    size: int


def copies_of(deliveries: Sequence[Delivery], origin: str) -> list[Copy]:
    """Return the copies, each with the original's body, attributes and ordering key, and the note on it.

    :param origin: where the originals came from.
    """
    return [_copy(delivery, origin) for delivery in deliveries]


def in_requests(copies: Sequence[Copy]) -> Iterator[list[Copy]]:
    """Yield the copies in requests of at most :data:`MOST_MESSAGES` and :data:`MOST_BYTES`."""
    request: list[Copy] = []
    size = ENVELOPE_BYTES
    for copy in copies:
        if request and (len(request) == MOST_MESSAGES or size + copy.size > MOST_BYTES):
            yield request
            request, size = [], ENVELOPE_BYTES
        request.append(copy)
        size += copy.size
    if request:
        yield request


def _copy(delivery: Delivery, origin: str) -> Copy:
    headers = note(delivery, origin).as_headers()
    originals = {name: str(value) for name, value in delivery.headers.items() if name not in headers}
    fitting = list(headers.items())[: MOST_ATTRIBUTES - len(originals)]
    if len(fitting) < len(headers):
        log.warning("Dead letter %s has no room for its whole note: %s", delivery.id, delivery.reason)
    copy = _with_attributes(delivery, {**originals, **{name: _cut(value) for name, value in fitting}})
    if copy.size > MOST_BYTES - ENVELOPE_BYTES:
        # A message of the largest size has no room for a note; the log has it.
        log.warning("Dead letter %s is too large for its note: %s", delivery.id, delivery.reason)
        copy = _with_attributes(delivery, originals)
    return copy


def _with_attributes(delivery: Delivery, attributes: dict[str, str]) -> Copy:
    from google.pubsub_v1 import types

    message = types.PubsubMessage(data=delivery.body, attributes=attributes, ordering_key=delivery.key or "")
    # A tag and a length come with each message of a request.
    return Copy(delivery, message, types.PubsubMessage.pb(message).ByteSize() + 6)


def _cut(value: str) -> str:
    """Return a text that is short enough in UTF-8."""
    return value.encode()[:MOST_VALUE_BYTES].decode("utf-8", "ignore")

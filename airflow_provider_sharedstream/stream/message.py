"""The envelope that filters and Dags see."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from msgspec import Struct, field, structs


class Message(Struct, frozen=True, gc=False):
    """One message, decoded, in the same shape from every source.

    Nothing in it leads back to it, so Python's garbage collector, which looks at what lives for longer than a moment
    again and again, is told to leave it alone.

    :param id: unique per message and the same at every redelivery. What was unwrapped from one
        delivery has a part number at the end (``<id>#0``).
    :param body: the decoded body: any JSON value.
    :param headers: the broker's headers, message attributes or application properties.
    :param key: the message key, ordering key, group or session, where the broker has one.
    :param published_at: when the broker took it, in UTC; None where the broker doesn't say.
    :param delivery_count: which delivery this is, from 1; None where nobody counts.
    :param attributes: what the broker says of the delivery (topic, partition, offset, queue, ...).
    """

    id: str
    body: Any
    headers: Mapping[str, Any] = field(default_factory=dict)
    key: str | None = None
    published_at: datetime | None = None
    delivery_count: int | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, **changes: Any) -> Message:
        """Return a message that differs in the fields named."""
        return structs.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return the message as it stands in the payload of an asset event."""
        return {
            "id": self.id,
            "body": self.body,
            "headers": dict(self.headers),
            "key": self.key,
            "published_at": None if self.published_at is None else utc_text(self.published_at),
            "delivery_count": self.delivery_count,
            "attributes": dict(self.attributes),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Message:
        """Build a message from what :meth:`as_dict` made; fields that are absent take their defaults."""
        published_at = stored.get("published_at")
        return cls(
            id=str(stored["id"]),
            body=stored.get("body"),
            headers=stored.get("headers") or {},
            key=stored.get("key"),
            published_at=None if published_at is None else datetime.fromisoformat(published_at),
            delivery_count=stored.get("delivery_count"),
            attributes=stored.get("attributes") or {},
        )


def utc_text(moment: datetime) -> str:
    """Return ``moment`` as ISO 8601 in UTC; a moment without a zone is taken as UTC."""
    if moment.tzinfo is not timezone.utc:
        moment = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    return moment.isoformat(timespec="milliseconds")

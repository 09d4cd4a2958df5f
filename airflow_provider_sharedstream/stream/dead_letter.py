"""The note that goes with a rejected message, so that somebody can find out why and put it back."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.message import utc_text

PREFIX = "x-sharedstream-"
LONGEST_REASON = 1024
"""Characters of a reason. SQS counts attributes into a message's size, Service Bus cuts at 4,096."""


class Note(NamedTuple):
    """Why a message was refused, and where it came from."""

    reason: str
    origin: str
    delivery_id: str
    watcher: str
    rejected_at: str
    delivery_count: int

    def as_headers(self) -> dict[str, str]:
        """Return the note as headers of the copy, each with the package's prefix."""
        return {PREFIX + name.replace("_", "-"): str(value) for name, value in self._asdict().items()}

    def as_dict(self) -> dict[str, Any]:
        """Return the note as a JSON object."""
        return self._asdict()


def note(delivery: Delivery, origin: str) -> Note:
    """Return the note for ``delivery``, which came from ``origin``."""
    return Note(
        reason=_clean(delivery.reason or "")[:LONGEST_REASON] or "rejected",
        origin=_clean(origin),
        delivery_id=_clean(delivery.id),
        watcher=_clean(", ".join(delivery.rejected_by))[:LONGEST_REASON] or "none",
        rejected_at=utc_text(datetime.now(timezone.utc)),
        delivery_count=delivery.delivery_count,
    )


def _clean(text: str) -> str:
    """Return ``text`` without what SQS refuses and headers elsewhere break at: control characters, lone surrogates."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(character if character.isprintable() else " " for character in whole).strip()

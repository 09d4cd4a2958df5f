"""A Kafka record as a delivery."""

from __future__ import annotations

import base64
from collections.abc import Hashable, Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_provider_sharedstream.stream.delivery import NOTHING, Delivery

OVERHEAD_BYTES = 1024
"""What Python holds for a record and the delivery around it, beside key, value and headers."""

TIMESTAMP_TYPES = {0: "create_time", 1: "log_append_time"}


class KafkaDelivery(Delivery):
    """Computes on demand what many small records are seldom asked for.

    :param record: aiokafka's.
    :param lane: its topic and partition.
    """

    __slots__ = ("record",)

    def __init__(self, record: Any, lane: Hashable) -> None:
        self.record = record
        self.lane = lane
        self.size = len(record.value or b"") + OVERHEAD_BYTES
        self.delivery_count = 0
        self.lease_seconds = None
        self.received_at = 0.0
        self.lease_deadline = None
        self.lease_lost = False
        self.epoch = 0
        self.release_delay_seconds = 0.0
        self.reason = None
        self.rejected_by = ()
        self.parked = False
        self.settled = None
        self.decoded = None

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return int(self.record.offset)

    @property
    def id(self) -> str:  # type: ignore[override]
        record = self.record
        return f"{record.topic}:{record.partition}:{record.offset}"

    @property
    def body(self) -> bytes | None:  # type: ignore[override]
        value: bytes | None = self.record.value
        return value

    @property
    def key(self) -> Any:  # type: ignore[override]
        # Bytes; the decoder makes text of them.
        return self.record.key

    @property
    def headers(self) -> Mapping[str, Any]:  # type: ignore[override]
        given = self.record.headers
        return headers_of(given) if given else NOTHING

    @property
    def published_at(self) -> datetime | None:  # type: ignore[override]
        return moment(self.record.timestamp)

    @property
    def attributes(self) -> Mapping[str, Any]:  # type: ignore[override]
        record = self.record
        return {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestamp_type": TIMESTAMP_TYPES.get(record.timestamp_type),
        }


def headers_of(pairs: tuple[tuple[str, bytes | None], ...]) -> dict[str, Any]:
    """Return headers by name; one that occurs several times is the list of its values, in order."""
    made: dict[str, Any] = {}
    repeated: set[str] = set()
    for name, value in pairs:
        if name not in made:
            made[name] = value
        elif name not in repeated:
            repeated.add(name)
            made[name] = [_in_a_list(made[name]), _in_a_list(value)]
        else:
            made[name].append(_in_a_list(value))
    return made


def _in_a_list(value: bytes | None) -> Any:
    """Return a value as JSON; what isn't text says that it is base64."""
    if value is None:
        return None
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode("ascii")}


def moment(milliseconds: int | None) -> datetime | None:
    """Return a record's timestamp; None where it has none (-1), or one that no calendar knows."""
    if milliseconds is None or milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None

"""A Kafka record as a delivery."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from msgspec import Struct

from airflow_provider_sharedstream.stream.delivery import NOTHING

OVERHEAD_BYTES = 1024
"""What Python holds for a delivery, beside the record's bytes."""

TIMESTAMP_TYPES = {0: "create_time", 1: "log_append_time"}


class KafkaDelivery(Struct, gc=False, eq=False):
    """What a :class:`~airflow_provider_sharedstream.stream.delivery.Delivery` is, for many small records.

    Python's garbage collector looks at most objects that live for longer than a moment, again and again; with a hundred
    thousand records a second that takes longer than everything else. It doesn't look at these, and nothing in them
    leads back to them. What is seldom asked for is computed on demand.

    :param lane: topic and partition.
    :param offset: the record's place in the partition.
    :param body: the value; None: a tombstone.
    :param key: bytes; the decoder makes text of them.
    :param pairs: headers, in their order.
    :param timestamp: milliseconds since the epoch.
    :param timestamp_type: a key of :data:`TIMESTAMP_TYPES`.
    :param size: bytes in memory.
    :param history: in which the partition is read (:mod:`.histories`).
    """

    lane: Any
    offset: int
    body: bytes | None
    key: bytes | None
    pairs: tuple[tuple[str, bytes | None], ...]
    timestamp: int | None
    timestamp_type: int | None
    size: int
    history: str

    # The machine's, as in Delivery.
    delivery_count: int = 0
    received_at: float = 0.0
    lease_seconds: float | None = None
    lease_deadline: float | None = None
    lease_lost: bool = False
    epoch: int = 0
    release_delay_seconds: float = 0.0
    reason: str | None = None
    rejected_by: tuple[str, ...] = ()
    parked: bool = False
    settled: bool | None = None
    decoded: Any = None

    @property
    def id(self) -> str:
        """The same whenever the record comes again."""
        return f"{self.lane.topic}:{self.lane.partition}:{self.offset}"

    @property
    def headers(self) -> Mapping[str, Any]:
        """By name."""
        return headers_of(self.pairs) if self.pairs else NOTHING

    @property
    def published_at(self) -> datetime | None:
        """The record's timestamp."""
        return moment(self.timestamp)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What Kafka says of the record."""
        return {
            "topic": self.lane.topic,
            "partition": self.lane.partition,
            "offset": self.offset,
            "timestamp": self.timestamp,
            "timestamp_type": TIMESTAMP_TYPES.get(self.timestamp_type),  # type: ignore[arg-type]
        }

    def __repr__(self) -> str:
        return f"<KafkaDelivery {self.id}>"


def deliveries_of(lane: Any, records: Sequence[Any], history: str = "") -> list[KafkaDelivery]:
    """Return aiokafka's records of one lane as deliveries."""
    return [
        KafkaDelivery(
            lane,
            record.offset,
            record.value,
            record.key,
            record.headers,
            record.timestamp,
            record.timestamp_type,
            # A size is -1 where there is nothing.
            OVERHEAD_BYTES
            + record.serialized_value_size
            + record.serialized_key_size
            + (sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else 0),
            history,
        )
        for record in records
    ]


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

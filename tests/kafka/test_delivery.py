"""A record as a delivery: all that the machine asks for, at little cost."""

from __future__ import annotations

import gc
from datetime import datetime, timezone
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.structs import ConsumerRecord

from airflow_provider_sharedstream.brokers.kafka.delivery import (
    OVERHEAD_BYTES,
    KafkaDelivery,
    deliveries_of,
    headers_of,
    moment,
)
from airflow_provider_sharedstream.stream.delivery import Delivery

LANE = TopicPartition("orders", 3)


def delivery(key: bytes | None = b"k", value: bytes | None = b"v", headers: Any = ()) -> KafkaDelivery:
    sizes = [-1 if part is None else len(part) for part in (key, value)]
    record = ConsumerRecord("orders", 3, 7, 1_700_000_000_123, 0, key, value, None, *sizes, headers)
    (made,) = deliveries_of(LANE, [record])
    return made


def test_it_has_all_that_a_delivery_has() -> None:
    made, plain = delivery(), Delivery(id="orders:3:7", body=b"v", lane=LANE)
    # What an adapter keeps for itself there is fields here.
    for name in {*Delivery.__slots__} - {"handle"}:
        assert hasattr(made, name), name
    for name in ("received_at", "lease_deadline", "lease_lost", "epoch", "reason", "rejected_by", "parked", "decoded"):
        assert getattr(made, name) == getattr(plain, name), name
        setattr(made, name, getattr(plain, name))
    assert (made.id, made.body, made.lane) == (plain.id, plain.body, plain.lane)


def test_two_of_one_record_are_two() -> None:
    one, other = delivery(), delivery()
    assert one != other
    assert len({one, other}) == 2


def test_the_garbage_collector_does_not_look_at_it() -> None:
    assert not gc.is_tracked(delivery(headers=(("a", b"b"),)))


def test_its_size_is_that_of_the_record() -> None:
    headers = (("name", b"value"), ("none", None))
    assert delivery(b"key", b"x" * 1000, headers).size == OVERHEAD_BYTES + 3 + 1000 + 9 + 4
    assert abs(delivery(None, None).size - OVERHEAD_BYTES) <= 2


def test_headers_keep_repeats_in_their_order() -> None:
    pairs = (("a", b"1"), ("b", b"2"), ("a", b"\xff"), ("a", None))
    assert headers_of(pairs) == {"a": ["1", {"base64": "/w=="}, None], "b": b"2"}


@pytest.mark.parametrize(
    ("milliseconds", "expected"),
    [
        (1_700_000_000_123, datetime(2023, 11, 14, 22, 13, 20, 123_000, timezone.utc)),
        (0, datetime(1970, 1, 1, tzinfo=timezone.utc)),
        (-1, None),
        (None, None),
        (2**62, None),
    ],
)
def test_a_timestamp_that_no_calendar_knows_is_none(milliseconds: int | None, expected: datetime | None) -> None:
    assert moment(milliseconds) == expected

from __future__ import annotations

import json
import math
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from structlog.processors import JSONRenderer

from airflow_provider_sharedstream.messages.payload import (
    MAX_DEPTH,
    MAX_INTEGER,
    MIN_INTEGER,
    MessagesEvent,
    described,
    event_payload,
    storable,
)
from airflow_provider_sharedstream.stream.errors import UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message
from tests.messages.airflow_path import as_a_task_sees, as_triggering, supervised


class Colour(Enum):
    RED = "red"


class Loud(str):
    def __str__(self) -> str:
        return "LOUD"


class Point(NamedTuple):
    x: int
    y: int


def nested(depth: int, leaf: Any = 1) -> Any:
    for _ in range(depth):
        leaf = [leaf]
    return leaf


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        "",
        "é\x00😀",
        0,
        MIN_INTEGER,
        MAX_INTEGER,
        -0.0,
        1.7e308,
        [],
        {},
        {"a": [{"b": None}]},
        nested(MAX_DEPTH),
    ],
    ids=lambda value: type(value).__name__,
)
def test_json_stays_as_it_is(value: Any) -> None:
    made = storable(value)
    assert made == value
    assert type(made) is type(value)


@pytest.mark.parametrize(
    ("value", "made"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        (datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2))), "2026-01-31T12:00:00+02:00"),
        (date(2026, 1, 31), "2026-01-31"),
        (time(12, 30), "12:30:00"),
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Colour.RED, "red"),
        ({1: "a", Loud("quiet"): "b"}, {"1": "a", "quiet": "b"}),
        (Loud("quiet"), "quiet"),
    ],
    ids=lambda value: (
        type(value).__name__ if not isinstance(value, str) else value[:20].encode("ascii", "replace").decode()
    ),
)
def test_what_has_one_meaning_as_json_becomes_it(value: Any, made: Any) -> None:
    result = storable({"x": [value]})["x"][0]
    assert result == made
    assert json.loads(json.dumps(result, allow_nan=False)) == made


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"abc", "body.a[1] can't be stored: 3 bytes where text or another JSON value is expected"),
        (math.nan, "body.a[1] can't be stored: the number nan is not JSON"),
        (-math.inf, "body.a[1] can't be stored: the number -inf is not JSON"),
        ("x\ud800", r"body.a[1] can't be stored: text with a lone surrogate: x\ud800"),
        (2**64, f"body.a[1] can't be stored: the whole number {2**64} is outside {MIN_INTEGER} to {MAX_INTEGER}"),
        (MIN_INTEGER - 1, f"the whole number {MIN_INTEGER - 1} is outside"),
        (10**10_000, "a whole number of 33220 bits is outside"),
        (object(), "body.a[1] can't be stored: object where a JSON value is expected"),
        ({"b": {None: 1}}, "a key of body.a[1].b can't be stored: NoneType where text is expected"),
        ({"\udcff": 1}, "a key of body.a[1] can't be stored: text with a lone surrogate"),
        ({1: 1, "1": 2}, "body.a[1].1 can't be stored: two keys with this name"),
        (nested(MAX_DEPTH - 1), f"can't be stored: nested deeper than {MAX_DEPTH}"),
        ({10**5000}, "a set whose members can't be put in order"),
        (lambda: 1, "function where a JSON value is expected"),
    ],
    ids=lambda value: (
        type(value).__name__ if not isinstance(value, str) else value[:20].encode("ascii", "replace").decode()
    ),
)
def test_what_cannot_be_stored_is_refused_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(UndecodableMessage) as caught:
        storable({"a": [0, value]})
    assert reason in str(caught.value)
    str(caught.value).encode("utf-8")


def test_a_value_that_holds_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(UndecodableMessage, match="nested deeper"):
        storable(value)


def test_described_says_what_was_there() -> None:
    made = described({"a": b"abc", "b": [math.nan], "c": object(), 5: "x", "d": 2**70})
    assert made == {
        "a": "<3 bytes where text or another JSON value is expected>",
        "b": ["<the number nan is not JSON>"],
        "c": "<object where a JSON value is expected>",
        "5": "x",
        "d": f"<the whole number {2**70} is outside {MIN_INTEGER} to {MAX_INTEGER}>",
    }


def payload_with(body: Any) -> dict[str, Any]:
    return event_payload("sqs", "orders", [Message("m-1", body, {"h": "v"}, attributes={"a": 1})])


def test_the_payload_has_one_shape() -> None:
    assert payload_with({"order": 7}) == {
        "source": "sqs",
        "stream": "orders",
        "messages": [
            {
                "id": "m-1",
                "body": {"order": 7},
                "headers": {"h": "v"},
                "key": None,
                "published_at": None,
                "delivery_count": None,
                "attributes": {"a": 1},
            }
        ],
    }


def test_the_event_passes_from_runner_to_supervisor_unchanged() -> None:
    payload = payload_with({"big": MAX_INTEGER, "small": MIN_INTEGER, "zero": "\x00", "deep": nested(MAX_DEPTH - 1)})
    assert supervised(MessagesEvent(payload=payload)).payload == payload


def test_a_task_sees_the_deepest_body_and_would_not_see_one_of_two_hundred() -> None:
    seen = as_a_task_sees(MessagesEvent(payload=payload_with(nested(MAX_DEPTH))))
    (event,) = next(iter(seen.values()))
    extra: Any = event.extra
    assert extra["payload"]["messages"][0]["body"] == nested(MAX_DEPTH)
    # The reason for the limit. When this no longer fails, the limit can be raised.
    with pytest.raises(ValueError, match="recursion limit exceeded"):
        as_triggering({"payload": payload_with(nested(200))})


def test_no_body_stands_in_the_log() -> None:
    event = MessagesEvent(payload=payload_with("confidential"))
    written = [repr(event), str(event), f"{event}", JSONRenderer()(None, "info", {"result": event})]
    assert written[0] == "<1 messages of sqs:orders, first m-1>"
    assert not [text for text in written if "confidential" in str(text)]
    assert repr(MessagesEvent(payload="something else")) == "<MessagesEvent>"

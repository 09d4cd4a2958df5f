"""What is in a message: properties, annotations, and every kind of AMQP body."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage

from tests.airflow_loop import Watcher, triggerer, until
from tests.service_bus.conftest import ServiceBus, emptied, trigger


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")


async def received(service_bus: ServiceBus, messages: list[Any], **arguments: Any) -> Watcher:
    """A watcher that has got them."""
    queue = service_bus.queue(**({"requires_session": True} if arguments.get("session_enabled") else {}))
    async with triggerer() as running:
        watcher = running.start(trigger(queue, **arguments))
        for message in messages:
            await asyncio.to_thread(service_bus.send_messages, queue, [message])
        await until(lambda: len(watcher.ids) >= len(messages), "all messages")
        await until(emptied(service_bus, queue), "an empty queue")
    return watcher


async def test_properties_and_annotations(service_bus: ServiceBus) -> None:
    before = datetime.now(timezone.utc) - timedelta(seconds=5)
    properties: dict[str | bytes, Any] = {
        "colour": "grün",
        "count": 3,
        "ratio": 0.5,
        "yes": True,
        "id": UUID(int=7),
        "nothing": None,
    }
    sent = ServiceBusMessage(
        json.dumps({"a": 1}),
        application_properties=properties,
        session_id="s1",
        message_id="m-17",
        content_type="application/json",
        correlation_id="c-1",
        subject="order",
        to="somewhere",
        reply_to="back",
        reply_to_session_id="s2",
        time_to_live=timedelta(hours=1),
    )
    watcher = await received(service_bus, [sent], session_enabled=True, match="headers.colour == 'grün'")
    (message,) = watcher.messages
    assert re.fullmatch(r"127\.0\.0\.1:\d+/q\d+-\d+/1", message["id"])
    assert message["body"] == {"a": 1}
    headers = message["headers"]
    assert headers["colour"] == "grün"
    assert (headers["count"], headers["ratio"], headers["yes"]) == (3, 0.5, True)
    assert headers["id"] == str(UUID(int=7))
    assert headers["nothing"] is None
    assert message["key"] == "s1"
    assert before < datetime.fromisoformat(message["published_at"]) < datetime.now(timezone.utc) + timedelta(seconds=5)
    assert message["delivery_count"] == 1
    attributes = message["attributes"]
    expected = {
        "message_id": "m-17",
        "sequence_number": 1,
        "content_type": "application/json",
        "correlation_id": "c-1",
        "subject": "order",
        "session_id": "s1",
        "to": "somewhere",
        "reply_to": "back",
        "reply_to_session_id": "s2",
    }
    assert {name: attributes.get(name) for name in expected} == expected
    assert "dead_letter_reason" not in attributes


async def test_kinds_of_bodies(service_bus: ServiceBus) -> None:
    several = AmqpAnnotatedMessage(data_body=[b'{"a"', b": 1}"])
    nested = {"text": "ü", "list": [1, 2.5, None, True], "deep": {"raw": b"\xff"}}
    sent = [
        several,
        AmqpAnnotatedMessage(value_body="a text"),
        AmqpAnnotatedMessage(value_body=17),
        AmqpAnnotatedMessage(value_body=nested),
        AmqpAnnotatedMessage(value_body=[1, "two"]),
        AmqpAnnotatedMessage(value_body=None),
        AmqpAnnotatedMessage(value_body=UUID(int=5)),
        AmqpAnnotatedMessage(sequence_body=[1, "two", {"three": 3}]),
        AmqpAnnotatedMessage(sequence_body=[[1, 2], [3]]),
        ServiceBusMessage(b""),
        ServiceBusMessage(None),
        ServiceBusMessage(b"\xff\xfe"),
    ]
    watcher = await received(service_bus, sent)
    bodies = [m["body"] for m in sorted(watcher.messages, key=lambda m: m["attributes"]["sequence_number"])]
    assert bodies == [
        {"a": 1},
        "a text",
        17,
        {"text": "ü", "list": [1, 2.5, None, True], "deep": {"raw": "/w=="}},
        [1, "two"],
        None,
        str(UUID(int=5)),
        [1, "two", {"three": 3}],
        [1, 2, 3],
        "",
        None,
        "//4=",
    ]

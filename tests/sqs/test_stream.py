"""What becomes of messages, and what is said of mistakes.

On a real server, under watchers on Airflow's real `SharedStreamManager`.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.airflow_loop import triggerer, until
from tests.sqs.conftest import Sqs
from tests.sqs.streams import is_empty, send, trigger


async def test_poison_goes_to_the_dead_letter_queue_with_its_reason(sqs: Sqs) -> None:
    queue = sqs.queue()
    assert queue.dead_letters is not None
    async with triggerer() as running:
        careful = running.start(trigger(sqs, queue, apply_function="tests.filters.explode_on_poison"))
        sibling = running.start(trigger(sqs, queue))
        strict = running.start(trigger(sqs, queue, decode="json", match="body.n >= `0`"))
        await send(queue, [{"n": n} for n in range(50)] + [{"n": 50, "poison": True}])
        await asyncio.to_thread(queue.send, ["not JSON at all", '{"n": 1e400}'])
        await until(is_empty(queue), "an empty queue")
        letters = {m["Body"]: m["MessageAttributes"] for m in await asyncio.to_thread(queue.dead_letters.take)}
        assert len(letters) == 3
        reason = "x-sharedstream-reason"
        assert "poison" in letters['{"n": 50, "poison": true}'][reason]["StringValue"]
        assert "JSON" in letters["not JSON at all"][reason]["StringValue"]
        assert "body.n" in letters['{"n": 1e400}'][reason]["StringValue"]
        assert {body["n"] for body in careful.bodies if isinstance(body, dict)} == set(range(50))
        assert {body["n"] for body in strict.bodies} == set(range(51))
        assert {body["n"] for body in sibling.bodies if isinstance(body, dict)} == set(range(51))
        assert not any(watcher.restarts for watcher in (careful, sibling, strict))


async def test_what_sqs_refuses_is_said_clearly(sqs: Sqs, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SqsSharedStreamTrigger("no-such-queue", aws_conn_id=sqs.conn_id)
    consumer = missing.producer_class.consumer_class("no-such-queue", aws_conn_id=sqs.conn_id)
    with pytest.raises(SourceUnavailable, match=r"sqs_queue='no-such-queue': there is no such queue"):
        await consumer.connect()
    await consumer.close()
    consumer = missing.producer_class.consumer_class("any", aws_conn_id="no_such_connection")
    with pytest.raises(SourceUnavailable, match=r"aws_conn_id='no_such_connection': there is no such connection"):
        await consumer.connect()
    await consumer.close()
    queue = sqs.queue()
    consumer = missing.producer_class.consumer_class(queue.name, sqs.conn_id, dead_letter_queue=queue.name)
    with pytest.raises(SourceUnavailable, match="is the queue itself"):
        await consumer.connect()
    await consumer.close()


async def test_a_queue_may_be_named_by_url_or_arn(sqs: Sqs) -> None:
    queue = sqs.queue()
    for name in (queue.url, queue.arn):
        async with triggerer() as running:
            watcher = running.start(SqsSharedStreamTrigger(name, aws_conn_id=sqs.conn_id))
            await send(queue, [{"name": name}])
            await until(lambda watcher=watcher: watcher.bodies, f"a message through {name}")
            assert watcher.bodies == [{"name": name}]


async def test_message_attributes_and_system_attributes_are_in_the_message(sqs: Sqs) -> None:
    queue = sqs.queue(fifo=True)
    async with triggerer() as running:
        watcher = running.start(trigger(sqs, queue))
        attributes = {
            "colour": {"DataType": "String", "StringValue": "grün"},
            "size": {"DataType": "Number", "StringValue": "12345678901234567890123456789012345678"},
            "raw": {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        }
        await asyncio.to_thread(queue.send, ['{"a": 1}'], attributes=attributes, group="g1")
        await until(lambda: watcher.messages, "the message")
        message = watcher.messages[0]
        assert message["headers"]["colour"] == "grün"
        assert message["headers"]["size"] == "12345678901234567890123456789012345678"
        assert "/wA=" in json.dumps(message["headers"]["raw"])
        assert message["key"] == "g1"
        assert message["attributes"]["message_group_id"] == "g1"
        assert message["attributes"]["queue"] == queue.name
        assert message["delivery_count"] == 1
        assert message["published_at"].endswith("+00:00")

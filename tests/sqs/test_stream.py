"""The promises of the SQS trigger, on a real server under watchers on Airflow's real `SharedStreamManager`."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from services.sqs_queue import SqsQueue
from tests.airflow_loop import triggerer, until
from tests.sqs.conftest import Sqs


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")


def trigger(sqs: Sqs, queue: SqsQueue, **arguments: Any) -> SqsSharedStreamTrigger:
    return SqsSharedStreamTrigger(queue.name, aws_conn_id=sqs.conn_id, **arguments)


async def send(queue: SqsQueue, bodies: list[Any]) -> None:
    await asyncio.to_thread(queue.send, [json.dumps(body) for body in bodies])


def is_empty(queue: SqsQueue) -> Any:
    async def check() -> bool:
        return (await asyncio.to_thread(queue.depth)).total == 0

    return check


@pytest.mark.slow
async def test_twenty_watchers_are_one_connection_and_an_idle_minute_costs_four_receives(sqs: Sqs) -> None:
    queue = sqs.queue()
    async with triggerer() as running:
        watchers = [running.start(trigger(sqs, queue, match={"body.watcher": n})) for n in range(20)]
        await send(queue, [{"watcher": n % 20, "n": n} for n in range(200)])
        await until(lambda: all(len(w.ids) >= 10 for w in watchers), "ten messages at each watcher")
        await until(is_empty(queue), "an empty queue")
        for number, watcher in enumerate(watchers):
            assert sorted(body["n"] for body in watcher.bodies) == list(range(number, 200, 20))
        # The receives in parallel, which the burst was worth, run out one by one: each waits once more for its 20 s.
        await asyncio.sleep(25)
        before = Counter(sqs.proxy.calls)
        await asyncio.sleep(60)
        calls = Counter(sqs.proxy.calls) - before
        assert calls["ReceiveMessage"] <= 4, calls
        assert set(calls) == {"ReceiveMessage"}
        assert sqs.proxy.open == 1


async def test_a_slow_watcher_keeps_nobody_waiting_and_calls_are_few(sqs: Sqs) -> None:
    queue = sqs.queue()
    await send(queue, [{"n": n} for n in range(500)])
    sqs.proxy.calls.clear()
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5) as running:
        slow = running.start(trigger(sqs, queue, apply_function="tests.sqs.filters.three_seconds"))
        quick = [running.start(trigger(sqs, queue)) for _ in range(3)]
        await until(lambda: all(len(w.ids) == 500 for w in quick), "500 at each quick watcher")
        done_quick = len(slow.ids)
        assert done_quick < 500, "the slow watcher was not slow"
        await until(lambda: len(slow.ids) == 500, "500 at the slow watcher")
        await until(is_empty(queue), "an empty queue")
    calls = dict(sqs.proxy.calls)
    # What a message costs; renewals of leases depend on how long the machine took, the rest doesn't.
    per_message = sum(calls.values()) / 500
    assert per_message <= 0.3, calls


async def test_five_thousand_waiting_and_twenty_five_watchers(sqs: Sqs) -> None:
    queue = sqs.queue()
    await asyncio.gather(
        *(send(queue, [{"n": n} for n in range(start, start + 1000)]) for start in range(0, 5000, 1000))
    )
    # One supervisor that stores 50 events a second, as measured of Airflow, for all 25 watchers.
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5, ack_timeout=60.0) as running:
        watchers = [running.start(trigger(sqs, queue)) for _ in range(25)]
        highest = 0
        deadline = time.monotonic() + 240
        while not all(len(w.ids) >= 5000 for w in watchers):
            depth = await asyncio.to_thread(queue.depth)
            highest = max(highest, depth.in_flight)
            assert time.monotonic() < deadline, [len(w.ids) for w in watchers]
            await asyncio.sleep(0.5)
        await until(is_empty(queue), "an empty queue")
        assert highest <= 1000, "more in flight than max_in_flight"
        for watcher in watchers:
            assert watcher.failure is None, "a queue overflowed, or an outcome timed out"
            assert sorted(body["n"] for body in watcher.bodies) == list(range(5000))


async def test_poison_goes_to_the_dead_letter_queue_with_its_reason(sqs: Sqs) -> None:
    queue = sqs.queue()
    assert queue.dead_letters is not None
    async with triggerer() as running:
        careful = running.start(trigger(sqs, queue, apply_function="tests.sqs.filters.explode_on_poison"))
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


@pytest.mark.slow
async def test_a_minute_without_the_server(sqs: Sqs, caplog: pytest.LogCaptureFixture) -> None:
    queue = sqs.queue()
    async with triggerer() as running:
        watchers = [running.start(trigger(sqs, queue)) for _ in range(5)]
        await send(queue, [{"n": n} for n in range(50)])
        await until(lambda: all(len(w.ids) >= 50 for w in watchers), "the first fifty")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            sqs.proxy.cut()
            await asyncio.to_thread(queue.send, [json.dumps({"n": n}) for n in range(50, 100)])
            await asyncio.sleep(60)
            sqs.proxy.heal()
            await until(lambda: all(len(set(w.ids)) >= 100 for w in watchers), "all hundred", 180)
        failures = [r for r in caplog.records if "next try in" in r.getMessage()]
        tries = [r for r in caplog.records if r.levelno >= logging.WARNING]
        # Backoff doubles from one second: a minute has room for few steps even where the jitter is kind.
        assert 2 <= len(failures) <= 25
        assert len(tries) <= len(failures) + 2, [r.getMessage() for r in tries]
        assert not any(watcher.restarts for watcher in watchers)
        await until(is_empty(queue), "an empty queue")


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

"""A broker that is away, that refuses, and adapters that make mistakes."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.memory import QUEUES, MemoryConsumer, MemoryQueue
from airflow_provider_sharedstream.stream.consumer import Failures
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from tests.machine.running import (
    CONSUMERS,
    PRODUCERS,
    QueueTrigger,
    assert_at_rest,
    new_queue,
    numbers,
    producer_of,
    publish,
    triggerer,
)
from tests.machine.virtual import in_virtual_time, now, until

PACKAGE = "airflow_provider_sharedstream"


class Troubled(MemoryConsumer):
    """Does what a test says before it does its work."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.calls: dict[str, list[float]] = {"connect": [], "receive": [], "settle": [], "close": []}
        self.on: dict[str, Any] = {}

    async def _before(self, what: str, *about: Any) -> Any:
        self.calls[what].append(now())
        if (action := self.on.get(what)) is not None:
            return await action(*about)
        return None

    async def connect(self) -> None:
        await self._before("connect")
        await super().connect()

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        await self._before("receive")
        return await super().receive(max_messages)

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        await self._before("settle", disposition)
        return await super().settle(disposition, deliveries)

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        await self._before("settle", Disposition.DEAD_LETTER)
        return await super().store_dead_letters(deliveries)

    async def close(self) -> None:
        await self._before("close")
        await super().close()


def troubled_queue(settings: dict[str, Any] | None = None, **properties: Any) -> tuple[str, MemoryQueue, Troubled]:
    name, queue = new_queue(settings, **properties)
    consumer = Troubled(name)
    CONSUMERS[name] = lambda: consumer
    return name, queue, consumer


def loud(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [r for r in caplog.records if r.levelno >= logging.WARNING and r.name.startswith(PACKAGE)]


@in_virtual_time
async def test_the_connection_is_lost_for_ten_minutes(caplog: pytest.LogCaptureFixture) -> None:
    name, queue, consumer = troubled_queue({"batch_size": 5}, lease_seconds=20.0)
    async with triggerer(store_seconds=0.01) as running:
        watchers = [running.start(QueueTrigger(name), restart=True) for _ in range(3)]
        publish(queue, 200)
        await until(lambda: len(watchers[0].ids) >= 20)
        caplog.clear()
        MemoryQueue.reachable = False
        started = now()
        await asyncio.sleep(600)
        tries = [at for at in consumer.calls["connect"] if at > started]
        assert 10 <= len(tries) <= 100, "seconds between tries, and never minutes of silence"
        assert max(later - earlier for earlier, later in itertools.pairwise(tries)) <= 31
        assert len([r for r in loud(caplog) if "next try in" in r.getMessage()]) <= len(tries) + 1
        # Besides, settlements and leases speak up every half minute at most.
        assert len(loud(caplog)) <= len(tries) + 1 + 2 * (600 / 30 + 1)
        MemoryQueue.reachable = True
        took = await until(lambda: not queue.messages, "an empty queue")
        assert took < 60
        for watcher in watchers:
            assert set(numbers(watcher)) == set(range(200))
            assert watcher.restarts == 0
        assert len(PRODUCERS[name]) == 1
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_short_cuts_again_and_again_lose_nothing() -> None:
    name, queue, _ = troubled_queue({"batch_size": 5}, lease_seconds=5.0)
    async with triggerer(store_seconds=0.005) as running:
        watchers = [running.start(QueueTrigger(name)) for _ in range(2)]
        for turn in range(20):
            publish(queue, 20, 20 * turn)
            await asyncio.sleep(1.3)
            MemoryQueue.reachable = False
            await asyncio.sleep(0.7)
            MemoryQueue.reachable = True
        await until(lambda: not queue.messages)
        for watcher in watchers:
            assert set(numbers(watcher)) == set(range(400))
            assert watcher.restarts == 0
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_wrong_credentials(caplog: pytest.LogCaptureFixture) -> None:
    """One clear line a try, without a traceback, and tries that grow rare."""
    name, queue, consumer = troubled_queue()

    async def refuse(*_: Any) -> None:
        raise SourceUnavailable("aws_conn_id='aws_default': AWS refuses the credentials. Correct them.")

    consumer.on["connect"] = refuse
    publish(queue, 3)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        await asyncio.sleep(3600)
        tries = consumer.calls["connect"]
        assert 12 <= len(tries) <= 30
        assert all(later - earlier >= 14 for earlier, later in itertools.pairwise(tries))
        lines = loud(caplog)
        assert len(lines) == len(tries)
        for line in lines:
            assert "Correct them." in line.getMessage()
            assert line.levelno == logging.ERROR
            assert not line.exc_info
        assert watcher.restarts == 0
        del consumer.on["connect"]
        await until(lambda: not queue.messages)
        assert sorted(numbers(watcher)) == [0, 1, 2]


@in_virtual_time
async def test_a_queue_that_is_made_later(caplog: pytest.LogCaptureFixture) -> None:
    name, queue, _ = troubled_queue()
    del QUEUES[name]
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        await asyncio.sleep(60)
        assert f"queue='{name}': there is no such queue" in loud(caplog)[0].getMessage()
        QUEUES[name] = queue
        publish(queue, 3)
        await until(lambda: not queue.messages)
        assert sorted(numbers(watcher)) == [0, 1, 2]


@pytest.mark.parametrize("what", ["connect", "receive", "close"])
@in_virtual_time
async def test_an_adapter_that_raises_what_nobody_foresaw(what: str, caplog: pytest.LogCaptureFixture) -> None:
    name, queue, consumer = troubled_queue(lease_seconds=600.0)

    async def mistake(*_: Any) -> None:
        raise KeyError("ReceiptHandle")

    consumer.on[what] = mistake
    publish(queue, 3)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name), restart=True)
        await asyncio.sleep(100)
        if what != "close":
            line = loud(caplog)[0]
            assert line.exc_info, "a traceback, or nobody finds the mistake"
            assert "KeyError: 'ReceiptHandle'" in line.getMessage()
            assert len(consumer.calls[what]) <= 10, "and not hot"
            del consumer.on[what]
        await until(lambda: not queue.messages)
        assert watcher.restarts == 0
    if what == "close":
        assert "ReceiptHandle" in loud(caplog)[-1].getMessage()
    assert_at_rest(producer_of(name))


@pytest.mark.parametrize("what", ["connect", "receive"])
@pytest.mark.parametrize("mishap", ["cancelled", "hangs"])
@in_virtual_time
async def test_an_sdk_that_cancels_or_never_returns(what: str, mishap: str) -> None:
    """A stray cancellation would end the loop in silence, and a call that hangs would stop it."""
    name, queue, consumer = troubled_queue()

    async def trouble(*_: Any) -> None:
        del consumer.on[what]
        if mishap == "hangs":
            await asyncio.sleep(1e9)
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(1)

    consumer.on[what] = trouble
    publish(queue, 3)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        took = await until(lambda: not queue.messages)
        assert took < 200
        assert sorted(numbers(watcher)) == [0, 1, 2]
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_receives_that_end_in_the_same_moment_leave_the_connection_alone() -> None:
    """Four receives come back short at once: three are too many, and not all four."""
    name, queue, consumer = troubled_queue({"batch_size": 10})
    gate = asyncio.Event()

    async def together(*_: Any) -> None:
        await gate.wait()

    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        for turn in range(50):
            publish(queue, 45, 45 * turn)
            await asyncio.sleep(0.3)
            consumer.on["receive"] = together
            gate.clear()
            await asyncio.sleep(1.2)
            gate.set()
        await until(lambda: not queue.messages)
        assert len(set(numbers(watcher))) == 45 * 50
        assert len(consumer.calls["connect"]) == 1
        assert max(len(producer_of(name).intake._workers), 1) <= 4


@in_virtual_time
async def test_settlements_that_are_refused_hold_the_stream_until_they_work(caplog: pytest.LogCaptureFixture) -> None:
    name, queue, consumer = troubled_queue({"batch_size": 5}, lease_seconds=60.0)

    async def refuse(disposition: Disposition) -> None:
        raise PermissionError("sqs:DeleteMessage is not allowed")

    consumer.on["settle"] = refuse
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        publish(queue, 500)

        def taken() -> int:
            return sum(1 for stored in queue.messages.values() if stored.count)

        await asyncio.sleep(30)
        first = taken()
        assert first < 300
        await asyncio.sleep(570)
        assert taken() == first, "taken although nothing can be settled"
        # What has been held for too long is let go of, and others are tried.
        await asyncio.sleep(1200)
        assert len(queue.messages) == 500
        assert taken() < first + 200
        assert len(loud(caplog)) <= 60
        assert any("not allowed" in line.getMessage() for line in loud(caplog))
        assert len(consumer.calls["settle"]) < 300
        del consumer.on["settle"]
        took = await until(lambda: not queue.messages, "an empty queue")
        assert took < 400
        assert set(numbers(watcher)) == set(range(500))
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_dead_letters_that_are_refused_leave_acceptances_and_leases_alone() -> None:
    """What can be settled is, and what can't keeps its lease: nothing comes twice for it."""
    name, queue, consumer = troubled_queue({"batch_size": 5}, lease_seconds=20.0)

    async def refuse(disposition: Disposition) -> None:
        if disposition is Disposition.DEAD_LETTER:
            raise PermissionError("sqs:SendMessage is not allowed")

    consumer.on["settle"] = refuse
    async with triggerer() as running:
        running.start(QueueTrigger(name, apply_function="tests.machine.functions.reject_odd"))
        publish(queue, 20)
        await until(lambda: len(queue.messages) == 10, "the good ones accepted")
        await asyncio.sleep(300)
        assert len(queue.messages) == 10
        assert all(stored.count == 1 for stored in queue.messages.values()), "leases ran out"
        del consumer.on["settle"]
        await until(lambda: not queue.messages)
        assert len(queue.dead_letters) == 10


@in_virtual_time
async def test_a_broken_metrics_backend_loses_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.observability import stats

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such backend")

    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, kind, broken)
    name, queue, _ = troubled_queue({"batch_size": 5})
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name), restart=True)
        publish(queue, 50)
        await until(lambda: not queue.messages)
        assert sorted(numbers(watcher)) == list(range(50))
        assert watcher.restarts == 0
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_an_adapter_whose_lanes_are_no_lanes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mistake between a receive and the watchers costs no permits."""
    name, queue, consumer = troubled_queue({"max_in_flight": 20}, lease_seconds=5.0)
    original = consumer.receive

    async def with_lists(most: int) -> Sequence[Delivery]:
        found = await original(most)
        if now() < 1100:
            for one in found:
                one.lane = ["not", "hashable"]  # type: ignore[assignment]
        return found

    monkeypatch.setattr(consumer, "receive", with_lists)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        publish(queue, 50)
        await until(lambda: not queue.messages)
        assert set(numbers(watcher)) == set(range(50))
        assert any(r.exc_info for r in loud(caplog))
    assert_at_rest(producer_of(name))

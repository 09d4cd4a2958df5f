"""A server, a network and locks that fail: nothing is lost, nothing comes again that needn't, nothing is left open."""

from __future__ import annotations

import asyncio
import logging

import pytest

from airflow_provider_sharedstream.brokers.service_bus import adapter as broker
from airflow_provider_sharedstream.brokers.service_bus import link as service_bus_link
from tests.airflow_loop import repeated, triggerer, until
from tests.emulators.service_bus import RemoteControl
from tests.service_bus import filters
from tests.service_bus.conftest import ServiceBus, emptied, send, trigger
from tests.service_bus.test_stream import FILTERS


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")


@pytest.fixture(autouse=True)
def _nothing_held() -> None:
    filters.BEGUN.clear()
    filters.GO_ON = asyncio.Event()


async def test_what_is_open_is_settled_after_a_reconnect(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(200)])
    async with triggerer() as running:
        watcher = running.start(trigger(queue, apply_function=f"{FILTERS}.held", batch_size=10))
        await until(lambda: filters.BEGUN, "the first message")
        await asyncio.sleep(1)
        held = await asyncio.to_thread(service_bus.locked, queue)
        assert held > 10
        for fault in (orders.drop_connections, orders.detach_links):
            await until(lambda fault=fault: fault() >= 1, "something to hit")
            await asyncio.sleep(2)
        filters.GO_ON.set()
        await until(lambda: len(set(watcher.ids)) >= 200, "200 messages")
        await until(emptied(service_bus, queue), "an empty queue")
        assert repeated(watcher.ids) == []
        assert not watcher.restarts


async def test_a_settlement_without_an_answer(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        watcher = running.start(trigger(queue, batch_size=10))
        await until(lambda: service_bus.proxy.open == 1, "a connection")
        orders.lose_settlement_replies(3)
        await send(service_bus, queue, [{"n": n} for n in range(100)])
        await until(emptied(service_bus, queue), "an empty queue", 90)
        assert len(set(watcher.ids)) == 100
        # They were carried out, so they don't come again; what was open with them is settled over the next connection.
        assert repeated(watcher.ids) == []
        assert orders.forget_faults() < 3, "no answer was lost"


async def test_a_busy_server_is_asked_again(
    service_bus: ServiceBus, orders: RemoteControl, caplog: pytest.LogCaptureFixture
) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        watcher = running.start(trigger(queue))
        orders.fail_settlements(8)
        await send(service_bus, queue, [{"n": n} for n in range(100)])
        await until(emptied(service_bus, queue), "an empty queue", 90)
        assert len(watcher.ids) == 100
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "sharedstream" in r.name]
    assert 1 <= len(warnings) <= 8, warnings


async def test_lost_locks_are_counted_and_come_again(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(30)])
    async with triggerer() as running:
        watcher = running.start(trigger(queue, apply_function=f"{FILTERS}.held", batch_size=10))
        await until(lambda: filters.BEGUN, "the first message")
        await until(lambda: orders.counts(queue).locked == 30, "all of them locked")
        assert orders.expire_locks(queue) == 30
        filters.GO_ON.set()
        await until(emptied(service_bus, queue), "an empty queue", 90)
        assert len(set(watcher.ids)) == 30
        counts = {m["id"]: m["delivery_count"] for m in watcher.messages}
        assert set(counts.values()) == {2}
        assert not watcher.restarts


async def test_a_stalled_network_is_noticed(
    service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(broker, "WAIT_SECONDS", 1.0)
    monkeypatch.setattr(service_bus_link, "PROBE_SECONDS", 2.0)
    monkeypatch.setattr(service_bus_link, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(service_bus_link, "OPEN_SECONDS", 4.0)
    queue = service_bus.queue()
    async with triggerer() as running:
        watcher = running.start(trigger(queue))
        await send(service_bus, queue, [{"n": 1}])
        await until(lambda: watcher.ids, "the first message")
        await until(emptied(service_bus, queue), "an empty queue")
        service_bus.proxy.stall()
        # Nothing is lost at TCP's level, and nothing is to be settled: all is quiet, as on an empty queue.
        await until(lambda: "has not answered" in caplog.text, "a word about the silence")
        service_bus.proxy.heal()
        await send(service_bus, queue, [{"n": 2}])
        await until(lambda: watcher.bodies[-1] == {"n": 2}, "the second message")
        assert not watcher.restarts

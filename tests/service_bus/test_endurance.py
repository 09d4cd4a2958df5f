"""More messages than fit, and a long time without the server."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from tests.airflow_loop import triggerer, until
from tests.service_bus.conftest import ServiceBus, emptied, send, trigger


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")


@pytest.mark.slow
async def test_five_thousand_waiting_and_twenty_five_watchers(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(5000)])
    # One supervisor that stores 50 events a second, as measured of Airflow, for all 25 watchers.
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5, ack_timeout=60.0) as running:
        watchers = [running.start(trigger(queue)) for _ in range(25)]
        highest = 0
        deadline = time.monotonic() + 240
        while not all(len(w.ids) >= 5000 for w in watchers):
            highest = max(highest, await asyncio.to_thread(service_bus.locked, queue))
            assert time.monotonic() < deadline, [len(w.ids) for w in watchers]
            await asyncio.sleep(0.5)
        await until(emptied(service_bus, queue), "an empty queue")
        assert 0 < highest <= 1000, "more in flight than max_in_flight"
        for watcher in watchers:
            assert watcher.failure is None, "a queue overflowed, or an outcome timed out"
            assert sorted(body["n"] for body in watcher.bodies) == list(range(5000))


@pytest.mark.slow
async def test_a_minute_without_the_server(service_bus: ServiceBus, caplog: pytest.LogCaptureFixture) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        watchers = [running.start(trigger(queue)) for _ in range(5)]
        await send(service_bus, queue, [{"n": n} for n in range(50)])
        await until(lambda: all(len(w.ids) >= 50 for w in watchers), "the first fifty")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            service_bus.proxy.cut()
            await send(service_bus, queue, [{"n": n} for n in range(50, 100)])
            await asyncio.sleep(60)
            service_bus.proxy.heal()
            await until(lambda: all(len(set(w.ids)) >= 100 for w in watchers), "all hundred", 180)
        failures = [r for r in caplog.records if "next try in" in r.getMessage()]
        tries = [r for r in caplog.records if r.levelno >= logging.WARNING]
        # Backoff doubles from one second: a minute has room for few steps even where the jitter is kind.
        assert 2 <= len(failures) <= 25
        # Settlements that wait, and locks that run out meanwhile, are a line each in half a minute.
        assert len(tries) <= len(failures) + 5, [r.getMessage() for r in tries]
        assert not any(watcher.restarts for watcher in watchers)
        await until(emptied(service_bus, queue), "an empty queue")

"""Servers that are away, and networks that say nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from airflow_provider_sharedstream.brokers.pubsub import stream as pubsub_stream
from tests.airflow_loop import triggerer, until
from tests.pubsub.conftest import PubSub, is_empty, send, trigger
from tests.pubsub.consumers import numbers, texts
from tests.pubsub.observed import ObservedTrigger


@pytest.mark.slow
async def test_a_minute_without_the_server(pubsub: PubSub, caplog: pytest.LogCaptureFixture) -> None:
    orders = pubsub.subscription()
    async with triggerer() as running:
        watchers = [running.start(trigger(pubsub, orders)) for _ in range(5)]
        await send(orders, texts(50))
        await until(is_empty(pubsub, orders), "the first fifty settled")
        # Fifty are with the watchers when it goes.
        running.storing.clear()
        await send(orders, texts(50, 50))
        await until(lambda: len(ObservedTrigger.producers[orders.name].holdings.budget) == 50, "fifty more")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            await asyncio.to_thread(pubsub.go_away)
            running.storing.set()
            await asyncio.sleep(60)
            await asyncio.to_thread(pubsub.come_back)
            await send(orders, texts(50, 100))
            await until(lambda: all(set(numbers(w)) == set(range(150)) for w in watchers), "all of them", 180)
        failures = [r for r in caplog.records if "next try in" in r.getMessage()]
        warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
        # Backoff doubles from one second: a minute has room for few steps even where the jitter is kind.
        assert 2 <= len(failures) <= 25
        # Besides, once in thirty seconds: that settlements are tried again, and that leases are lost.
        assert len(warnings) - len(failures) <= 8, [r.getMessage() for r in warnings]
        assert not any(watcher.restarts for watcher in watchers)
        await until(is_empty(pubsub, orders), "an empty subscription")


@pytest.mark.slow
async def test_a_network_that_says_nothing_is_noticed(
    pubsub: PubSub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub_stream, "QUIET_SECONDS", 3.0)
    orders = pubsub.subscription()
    async with triggerer() as running:
        watcher = running.start(trigger(pubsub, orders, ack_deadline_seconds=10))
        await send(orders, texts(5))
        await until(is_empty(pubsub, orders), "the first five settled")
        pubsub.proxy.stall()
        await send(orders, texts(5, 5))
        await until(lambda: "next try in" in caplog.text, "that it is said")
        pubsub.proxy.heal()
        await until(lambda: {body["n"] for body in watcher.bodies} == set(range(10)), "the others", 120)
        await until(is_empty(pubsub, orders), "an empty subscription")
        assert watcher.restarts == 0

"""Streams that end, are refused or say nothing; what is held, pulled, delayed."""

from __future__ import annotations

import asyncio
import logging
import time

import grpc
import pytest

from airflow_provider_sharedstream.brokers.pubsub import stream as pubsub_stream
from airflow_provider_sharedstream.stream.disposition import Disposition
from tests.airflow_loop import repeated, triggerer, until
from tests.conformance.suite import receive_all
from tests.pubsub.conftest import Own, PubSub, is_empty, send, trigger
from tests.pubsub.consumers import Consumers, held, received, texts


async def test_streams_that_the_service_moves_are_nobodys_business(
    own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub_stream, "LIVED_SECONDS", 0.5)
    own.emulator.faults.stream_seconds = 2.0
    orders = own.subscription()
    opened = own.emulator.calls["StreamingPull"]
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders))
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            await until(lambda: own.open_streams, "a stream")
            caplog.clear()
            for start in range(0, 100, 10):
                await send(orders, texts(10, start))
                await asyncio.sleep(0.8)
            await until(lambda: len(set(watcher.ids)) == 100, "all hundred")
            await until(is_empty(own, orders), "an empty subscription")
            assert own.emulator.calls["StreamingPull"] - opened >= 3
        assert not caplog.records, caplog.text
        assert not repeated(watcher.ids)


async def test_a_stream_that_ends_at_once_again_and_again_is_waited_for(
    own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    own.emulator.faults.stream_seconds = 0.05
    orders = own.subscription()
    async with triggerer() as running:
        running.start(trigger(own, orders))
        opened = own.emulator.calls["StreamingPull"]
        await until(lambda: own.emulator.calls["StreamingPull"] > opened, "a stream")
        await asyncio.sleep(6)
        # Full jitter from one second on, doubling: some ten in six seconds where it is kind.
        assert own.emulator.calls["StreamingPull"] - opened <= 20
        assert "next try in" in caplog.text


@pytest.mark.parametrize("code", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.FAILED_PRECONDITION])
async def test_where_streaming_is_refused_it_is_polled(
    own: Own, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    own.emulator.faults.refuse("StreamingPull", code)
    orders = own.subscription(ordered=True)
    async with triggerer() as running:
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            watcher = running.start(trigger(own, orders))
            for number in range(0, 30, 10):
                await send(orders, texts(10, number), ordering_key="k")
            await until(lambda: len(watcher.ids) == 30, "all thirty")
            await until(is_empty(own, orders), "an empty subscription")
        assert [body["n"] for body in watcher.bodies] == list(range(30))
        assert caplog.text.count("is polled from now on") == 1
        assert "next try in" not in caplog.text


async def test_where_nobody_says_whether_there_is_an_order_it_is_kept(own: Own, consumers: Consumers) -> None:
    own.emulator.faults.refuse("StreamingPull", grpc.StatusCode.UNIMPLEMENTED)
    own.emulator.faults.refuse("GetSubscription", grpc.StatusCode.PERMISSION_DENIED)
    orders = own.subscription(ordered=True)
    await send(orders, texts(2), ordering_key="k")
    await send(orders, texts(1))
    assert {delivery.lane for delivery in await received(consumers(own, orders), 3)} == {"k", None}


async def test_what_is_pulled_has_the_subscriptions_own_deadline(own: Own) -> None:
    own.emulator.faults.refuse("StreamingPull", grpc.StatusCode.UNIMPLEMENTED)
    orders = own.subscription(ack_deadline_seconds=3)
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, apply_function="tests.conformance.filters.slow"))
        await send(orders, texts(1, seconds=10))
        await until(lambda: watcher.ids, "the message")
        await until(is_empty(own, orders), "an empty subscription")
        assert len(watcher.ids) == 1


async def test_what_waits_for_its_delay_does_not_stop_the_stream(own: Own) -> None:
    """The service counts a message as outstanding until its deadline is over, and sends no more than it was asked."""
    orders = own.subscription()
    async with triggerer() as running:
        watcher = running.start(
            trigger(
                own,
                orders,
                apply_function="tests.filters.explode_on_poison",
                on_error="release",
                release_delay_seconds=600,
                max_in_flight=20,
                batch_size=5,
            )
        )
        await send(orders, texts(100, poison=True))
        await send(orders, texts(10))
        await until(lambda: len(watcher.ids) == 10, "what lies behind the poison")
        await until(lambda: own.owed(orders) == 100, "it is settled")


async def test_nobody_who_does_not_ask_holds_on_to_messages(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription()
    first, second = consumers(pubsub, orders), consumers(pubsub, orders)
    await first.connect()
    assert not await first.receive(1)
    await send(orders, texts(50))
    await until(lambda: len(held(first)) == 50, "all at the first")
    assert len(await received(second, 50)) == 50
    assert not held(first)
    # Asked again, it is there again.
    await send(orders, texts(1, 50))
    await second.close()
    assert await receive_all(first, 1)


async def test_what_is_held_keeps_its_lease(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription()
    consumer = consumers(pubsub, orders)
    await consumer.connect()
    await send(orders, texts(60))
    ids = {one.id for one in await receive_all(consumer, 1)}
    started = time.monotonic()
    while time.monotonic() - started < 2.5 * pubsub.lease_seconds:
        await asyncio.sleep(pubsub.lease_seconds / 3)
        found = await consumer.receive(1)
        assert len(found) == 1
        assert not await consumer.settle(Disposition.ACCEPT, found)
        ids |= {one.id for one in found}
    found = await receive_all(consumer, 60 - len(ids))
    assert not ids & {one.id for one in found}, "something came twice"
    assert not await consumer.settle(Disposition.ACCEPT, found)


@pytest.mark.slow
async def test_a_message_that_the_policy_took_away_does_not_take_its_followers_along(own: Own) -> None:
    orders = own.subscription(ordered=True, max_delivery_attempts=5)
    assert orders.dead_letters is not None
    async with triggerer() as running:
        watcher = running.start(
            trigger(
                own,
                orders,
                apply_function="tests.filters.explode_on_poison",
                release_delay_seconds=600,
                ack_deadline_seconds=10,
                batch_size=3,
            )
        )
        await send(orders, [*texts(1), *texts(1, 1, poison=True), *texts(8, 2)], ordering_key="k")
        await until(is_empty(own, orders), "an empty subscription", 180)
        letters = await asyncio.to_thread(orders.dead_letters.take)
        assert [letter.message.data for letter in letters] == [texts(1, 1, poison=True)[0].encode()]
        seen = [body["n"] for body in watcher.bodies]
        assert set(seen) == {0, *range(2, 10)}
        last = [max(at for at, n in enumerate(seen) if n == number) for number in range(2, 10)]
        assert last == sorted(last)

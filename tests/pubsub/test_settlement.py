"""Acknowledgements and copies that fail, as far as the servers can play it."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
from google.pubsub_v1.types import Subscription

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from tests.airflow_loop import repeated, triggerer, until
from tests.pubsub.conftest import Own, PubSub, is_empty, send, trigger
from tests.pubsub.consumers import Consumers, held, received, texts


async def test_exactly_once_an_acknowledgement_that_failed_is_tried_again(own: Own) -> None:
    orders = own.subscription(exactly_once=True)
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, ack_deadline_seconds=10))
        await until(lambda: own.open_streams, "a stream")
        own.emulator.faults.fail_ack_ids(80)
        await send(orders, texts(50))
        await until(is_empty(own, orders), "an empty subscription")
        assert sorted(body["n"] for body in watcher.bodies) == list(range(50))


async def test_exactly_once_what_the_service_took_back_is_not_settled(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription(exactly_once=True)
    await send(orders, texts(2))
    consumer = consumers(pubsub, orders)
    gone, kept = await received(consumer, 2)
    assert not await consumer.settle(Disposition.ACCEPT, [gone])
    failures = await consumer.settle(Disposition.ACCEPT, [gone, kept])
    assert set(failures) == {gone}
    assert isinstance(failures[gone], LeaseLost)
    assert list(await consumer.extend_leases([gone])) == [gone]
    assert pubsub.owed(orders) == 0


async def test_exactly_once_a_thousand_failures_are_told_apart(own: Own, consumers: Consumers) -> None:
    orders = own.subscription(exactly_once=True)
    await send(orders, texts(1000))
    consumer = consumers(own, orders, ack_deadline_seconds=60)
    *gone, kept = await received(consumer, 1000)
    assert not await consumer.settle(Disposition.ACCEPT, gone)
    failures = await consumer.settle(Disposition.ACCEPT, [*gone, kept])
    assert set(failures) == set(gone)
    assert {type(error) for error in failures.values()} == {LeaseLost}
    assert own.owed(orders) == 0


async def test_exactly_once_what_is_no_longer_ours_is_not_handed_out(own: Own, consumers: Consumers) -> None:
    orders = own.subscription(exactly_once=True)
    consumer = consumers(own, orders, ack_deadline_seconds=30)
    await consumer.connect()
    assert not await consumer.receive(1)
    await send(orders, texts(3))
    await until(lambda: len(held(consumer)) == 3, "three messages held")
    ack_id = held(consumer)[0].received.ack_id
    await asyncio.to_thread(
        orders.subscriber.modify_ack_deadline, subscription=orders.path, ack_ids=[ack_id], ack_deadline_seconds=0
    )
    await until(lambda: len(held(consumer)) == 4, "the one that was given back")
    found = await consumer.receive(10)
    assert len(found) == 3
    assert ack_id not in {delivery.handle for delivery in found}
    assert not await consumer.settle(Disposition.ACCEPT, found)


async def test_exactly_once_switched_on_under_an_open_stream(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    orders = own.subscription()
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, ack_deadline_seconds=10))
        await send(orders, texts(10))
        await until(is_empty(own, orders), "the first ten settled")
        changed = Subscription(name=orders.path, enable_exactly_once_delivery=True)
        mask = {"paths": ["enable_exactly_once_delivery"]}
        await asyncio.to_thread(orders.subscriber.update_subscription, subscription=changed, update_mask=mask)
        own.emulator.faults.fail_ack_ids(5)
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            await send(orders, texts(10, 10))
            await until(is_empty(own, orders), "all settled")
        assert caplog.text.count(f"{orders.path} has been changed: exactly-once delivery is on") == 1
        assert sorted(body["n"] for body in watcher.bodies) == list(range(20))
        assert watcher.restarts == 0


async def test_an_acknowledgement_whose_answer_was_lost_is_repeated(own: Own) -> None:
    orders = own.subscription()
    own.emulator.faults.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=2, applied=True)
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders))
        await send(orders, texts(10))
        await until(lambda: own.emulator.calls["Acknowledge"] and len(watcher.ids) >= 10, "ten messages")
        await until(is_empty(own, orders), "an empty subscription")
        assert not repeated(watcher.ids)


async def test_refused_acknowledgements_stop_the_intake_until_they_are_allowed(
    own: Own, caplog: pytest.LogCaptureFixture
) -> None:
    orders = own.subscription()
    own.emulator.faults.refuse("Acknowledge", grpc.StatusCode.PERMISSION_DENIED, "User not authorized.")
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, max_in_flight=20, batch_size=5))
        await send(orders, texts(100))
        await until(lambda: "access denied" in caplog.text, "a clear line")
        assert f"/subscriptions/{orders.name}': access denied" in caplog.text
        assert len(set(watcher.ids)) <= 40, "more was taken although nothing can be settled"
        own.emulator.faults.heal()
        await until(lambda: len(set(watcher.ids)) == 100, "all hundred", 240)
        await until(is_empty(own, orders), "an empty subscription")


async def test_ack_ids_of_a_subscription_made_anew_are_lost_leases(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription()
    await send(orders, texts(2))
    consumer = consumers(pubsub, orders)
    old = await received(consumer, 2)
    await asyncio.to_thread(orders.delete)
    made = Subscription(name=orders.path, topic=orders.topic)
    await asyncio.to_thread(orders.subscriber.create_subscription, request=made)
    failures = await consumer.settle(Disposition.ACCEPT, old)
    # Google's emulator takes them for ids of messages that are gone.
    assert all(isinstance(error, LeaseLost) for error in failures.values())
    if isinstance(pubsub, Own):
        assert set(failures) == set(old)
        assert set(await consumer.extend_leases(old)) == set(old)


@pytest.mark.parametrize(
    "words",
    [
        "Some acknowledgement ids in the request were invalid. This could be because they have expired.",
        "You have passed an invalid ack ID to the service (ack_id=projects/p).",
    ],
)
async def test_ack_ids_that_are_refused_as_a_whole_are_lost_leases(own: Own, consumers: Consumers, words: str) -> None:
    orders = own.subscription()
    await send(orders, texts(2))
    consumer = consumers(own, orders)
    found = await received(consumer, 2)
    for method in ("Acknowledge", "ModifyAckDeadline"):
        own.emulator.faults.refuse(method, grpc.StatusCode.INVALID_ARGUMENT, words)
    failures = await consumer.settle(Disposition.ACCEPT, found)
    assert [type(failures[delivery]) for delivery in found] == [LeaseLost, LeaseLost]
    assert set(await consumer.extend_leases(found)) == set(found)
    assert not await consumer.settle(Disposition.RELEASE, found)


async def test_a_copy_that_is_refused_keeps_the_original(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    orders = own.subscription()
    assert orders.dead_letters is not None
    own.emulator.faults.refuse("Publish", grpc.StatusCode.PERMISSION_DENIED, "User not authorized.")
    async with triggerer() as running:
        arguments = {"dead_letter_topic": orders.dead_letters.name, "decode": "json"}
        watcher = running.start(trigger(own, orders, **arguments))
        own.emulator.faults.heal()
        await send(orders, ["no JSON"])
        own.emulator.faults.refuse("Publish", grpc.StatusCode.PERMISSION_DENIED, "User not authorized.")
        await until(lambda: "access denied" in caplog.text, "a clear line")
        assert f"dead_letter_topic={orders.dead_letters.name!r}" in caplog.text
        assert own.owed(orders) == 1
        own.emulator.faults.heal()
        await until(is_empty(own, orders), "an empty subscription", 180)
        assert len(await asyncio.to_thread(orders.dead_letters.take)) == 1
        assert not watcher.events

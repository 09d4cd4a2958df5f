"""What goes wrong at the service, played by the tests' own emulator; where Google's can play it too, on that."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.pubsub_v1.types import PushConfig, Subscription

from airflow_provider_sharedstream.brokers.pubsub import stream as pubsub_stream
from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from services.pubsub_subscription import PubSubSubscription
from tests.airflow_loop import repeated, triggerer, until
from tests.conformance.suite import numbered, receive_all
from tests.pubsub.conftest import CONN_ID, Googles, Own, PubSub, is_empty, send, trigger

FILTERS = "tests.pubsub.filters"


def texts(count: int, start: int = 0, **more: Any) -> list[str]:
    return [body.decode() for body in numbered(count, start, **more)]


class Consumers:
    """Adapters that are closed at the end."""

    def __init__(self) -> None:
        self.made: list[PubSubConsumer] = []

    def __call__(self, server: PubSub, subscription: PubSubSubscription | str, **arguments: Any) -> PubSubConsumer:
        name = subscription if isinstance(subscription, str) else subscription.name
        given = {"ack_deadline_seconds": server.lease_seconds, "gcp_conn_id": CONN_ID, **arguments}
        self.made.append(PubSubConsumer(server.project, name, **given))
        return self.made[-1]


@pytest.fixture
async def consumers() -> AsyncIterator[Consumers]:
    made = Consumers()
    yield made
    for one in made.made:
        await one.close()


async def received(consumer: PubSubConsumer, count: int) -> list[Delivery]:
    await consumer.connect()
    return await receive_all(consumer, count)


def held(consumer: PubSubConsumer) -> list[Any]:
    """What came and nobody has asked for yet."""
    return [] if consumer._stream is None else list(consumer._stream._held)


# Settlement.


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


async def test_exactly_once_switched_on_under_an_open_stream(own: Own) -> None:
    orders = own.subscription()
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, ack_deadline_seconds=10))
        await send(orders, texts(10))
        await until(is_empty(own, orders), "the first ten settled")
        changed = Subscription(name=orders.path, enable_exactly_once_delivery=True)
        mask = {"paths": ["enable_exactly_once_delivery"]}
        await asyncio.to_thread(orders.subscriber.update_subscription, subscription=changed, update_mask=mask)
        own.emulator.faults.fail_ack_ids(5)
        await send(orders, texts(10, 10))
        await until(is_empty(own, orders), "all settled")
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
        assert f"subscription={orders.name!r}" in caplog.text
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


# The stream.


async def test_streams_that_the_service_moves_are_nobodys_business(
    own: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pubsub_stream, "LIVED_SECONDS", 0.5)
    own.emulator.faults.stream_seconds = 1.0
    orders = own.subscription()
    opened = own.emulator.calls["StreamingPull"]
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders))
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            await until(lambda: own.open_streams, "a stream")
            caplog.clear()
            for start in range(0, 100, 10):
                await send(orders, texts(10, start))
                await asyncio.sleep(0.5)
            await until(lambda: len(set(watcher.ids)) == 100, "all hundred")
            await until(is_empty(own, orders), "an empty subscription")
            assert own.emulator.calls["StreamingPull"] - opened >= 4
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
                apply_function=f"{FILTERS}.explode_on_poison",
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
                apply_function=f"{FILTERS}.explode_on_poison",
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


# Bad input.


async def test_what_pubsub_refuses_is_said_clearly(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription()
    with pytest.raises(SourceUnavailable, match="subscription='no-such' of project .*Create it, or correct"):
        await consumers(pubsub, "no-such").connect()
    other = PubSubConsumer("another-project", orders.name, gcp_conn_id=CONN_ID)
    consumers.made.append(other)
    with pytest.raises(SourceUnavailable, match="of project 'another-project'"):
        await other.connect()
    with pytest.raises(SourceUnavailable, match=r"gcp_conn_id='no_such_connection': there is no such connection"):
        await consumers(pubsub, orders, gcp_conn_id="no_such_connection").connect()
    with pytest.raises(SourceUnavailable, match="is the subscription's own topic"):
        await consumers(pubsub, orders, dead_letter_topic=orders.name).connect()
    with pytest.raises(
        SourceUnavailable, match="dead_letter_topic='projects/.*/topics/no-such-topic': there is nothing"
    ):
        await consumers(pubsub, orders, dead_letter_topic="no-such-topic").connect()


async def test_a_project_that_nobody_names(own: Own, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_NO_PROJECT", '{"conn_type": "google_cloud_platform"}')
    consumer = PubSubConsumer(None, "orders", gcp_conn_id="no_project")
    with pytest.raises(SourceUnavailable, match="no project. Set project_id, or project in the extra of gcp_conn_id="):
        await consumer.connect()
    await consumer.close()


async def test_a_push_subscription(googles: Googles, consumers: Consumers) -> None:
    orders = googles.subscription()
    pushed = Subscription(
        name=f"{orders.path}-pushed",
        topic=orders.topic,
        push_config=PushConfig(push_endpoint="https://localhost.invalid/push"),
    )
    await asyncio.to_thread(orders.subscriber.create_subscription, request=pushed)
    with pytest.raises(SourceUnavailable, match="nobody can pull from it, since it has push_config.push_endpoint="):
        await consumers(googles, f"{orders.name}-pushed").connect()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "access denied. The identity of gcp_conn_id='google_tests' needs"),
        (grpc.StatusCode.UNAUTHENTICATED, "Google refuses the credentials of gcp_conn_id='google_tests'"),
        (grpc.StatusCode.NOT_FOUND, "Create it, or correct the name or project_id"),
    ],
)
@pytest.mark.parametrize("may_look", [True, False])
async def test_a_stream_that_is_refused(
    own: Own, consumers: Consumers, code: grpc.StatusCode, text: str, may_look: bool
) -> None:
    orders = own.subscription()
    consumer = consumers(own, orders)
    if not may_look:
        own.emulator.faults.refuse("GetSubscription", grpc.StatusCode.PERMISSION_DENIED)
    own.emulator.faults.refuse("StreamingPull", code, "Refused, the service says.")
    await consumer.connect()
    with pytest.raises(SourceUnavailable, match=text) as caught:
        await consumer.receive(1)
    assert "Refused, the service says." in str(caught.value)
    assert not consumer.is_transient(caught.value)


async def test_who_may_consume_need_not_be_allowed_to_look(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    own.emulator.faults.refuse("GetSubscription", grpc.StatusCode.PERMISSION_DENIED)
    own.emulator.faults.refuse("GetTopic", grpc.StatusCode.PERMISSION_DENIED)
    orders = own.subscription(ordered=True, max_delivery_attempts=5)
    assert orders.dead_letters is not None
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders, dead_letter_topic=orders.dead_letters.name, decode="json"))
        await send(orders, [*texts(5), "no JSON"], ordering_key="k")
        await until(is_empty(own, orders), "an empty subscription")
        assert [body["n"] for body in watcher.bodies] == list(range(5))
        # What couldn't be looked at, the messages say.
        assert {message["delivery_count"] for message in watcher.messages} == {1}
        assert len(await asyncio.to_thread(orders.dead_letters.take)) == 1
    assert "next try in" not in caplog.text


async def test_a_subscription_that_is_deleted_and_made_anew_with_order(
    own: Own, caplog: pytest.LogCaptureFixture, consumers: Consumers
) -> None:
    orders = own.subscription()
    consumer = consumers(own, orders)
    await send(orders, texts(2), ordering_key="k")
    found = await received(consumer, 2)
    assert {delivery.lane for delivery in found} == {None}
    await asyncio.to_thread(orders.delete)
    with pytest.raises(SourceUnavailable, match="Create it"):
        await receive_all(consumer, 1)
    made = Subscription(name=orders.path, topic=orders.topic, enable_message_ordering=True)
    await asyncio.to_thread(orders.subscriber.create_subscription, request=made)
    await send(orders, texts(2), ordering_key="k")
    found = await received(consumer, 2)
    assert {delivery.lane for delivery in found} == {"k"}


async def test_a_missing_subscription_is_said_once_a_try_and_tried_slowly(
    pubsub: PubSub, caplog: pytest.LogCaptureFixture
) -> None:
    orders = pubsub.subscription()
    await asyncio.to_thread(orders.delete)
    async with triggerer() as running:
        watcher = running.start(trigger(pubsub, orders))
        await until(lambda: "can't be used, next try in" in caplog.text, "a clear line")
        await asyncio.sleep(5)
        assert caplog.text.count("next try in") == 1
        assert watcher.restarts == 0

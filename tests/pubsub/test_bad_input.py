"""What somebody has to change: one clear line, and slow tries."""

from __future__ import annotations

import asyncio
import json
import logging

import grpc
import pytest
from google.pubsub_v1.types import PushConfig, Subscription

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from tests.airflow_loop import triggerer, until
from tests.conformance.suite import receive_all
from tests.pubsub.conftest import CONN_ID, Googles, Own, PubSub, is_empty, send, trigger
from tests.pubsub.consumers import Consumers, numbers, received, texts
from tests.pubsub.tokens import TokenServer


async def test_what_pubsub_refuses_is_said_clearly(pubsub: PubSub, consumers: Consumers) -> None:
    orders = pubsub.subscription()
    with pytest.raises(
        SourceUnavailable, match="subscription='projects/.*/subscriptions/no-such': .*Create it, or correct"
    ):
        await consumers(pubsub, "no-such").connect()
    with pytest.raises(SourceUnavailable, match="subscription='projects/another-project/subscriptions/"):
        await consumers(pubsub, orders, project_id="another-project").connect()
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
    """The only way to switch ordering on, or off, later."""
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


async def test_order_that_is_there_all_of_a_sudden(own: Own, caplog: pytest.LogCaptureFixture) -> None:
    orders = own.subscription()
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders))
        await send(orders, texts(5), ordering_key="k")
        await until(is_empty(own, orders), "the first five settled")
        own.emulator.set_ordering(orders.path, True)
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            await send(orders, texts(20, 5), ordering_key="k")
            await until(is_empty(own, orders), "all settled")
        assert caplog.text.count("exactly-once delivery is off, message ordering is on") == 1
        assert numbers(watcher)[5:] == list(range(5, 25))
        assert watcher.restarts == 0


async def test_what_somebody_has_to_change_is_said_once_a_try_and_tried_slowly(
    pubsub: PubSub, caplog: pytest.LogCaptureFixture
) -> None:
    orders = pubsub.subscription()
    async with triggerer() as running:
        watchers = [
            running.start(PubSubSharedStreamTrigger("another-project", orders.name, gcp_conn_id=CONN_ID)),
            running.start(PubSubSharedStreamTrigger(pubsub.project, "no-such", gcp_conn_id=CONN_ID)),
            running.start(PubSubSharedStreamTrigger(pubsub.project, orders.name, gcp_conn_id="no_such_connection")),
        ]
        await until(lambda: len(tries(caplog)) == 3, "a line of each")
        await asyncio.sleep(5)
        said = tries(caplog)
        assert len(said) == 3, said
        assert all("can't be used, next try in" in line for line in said)
        for name in ("projects/another-project/", "/subscriptions/no-such'", "gcp_conn_id='no_such_connection'"):
            assert sum(name in line for line in said) == 1, said
        assert not any(watcher.restarts or watcher.failure for watcher in watchers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.PERMISSION_DENIED, "access denied"),
        (grpc.StatusCode.UNAUTHENTICATED, "Google refuses the credentials"),
    ],
)
async def test_a_refused_stream_is_tried_slowly_until_it_is_allowed(
    own: Own, code: grpc.StatusCode, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    orders = own.subscription()
    own.emulator.faults.refuse("StreamingPull", code, "Refused, the service says.")
    opened = own.emulator.calls["StreamingPull"]
    async with triggerer() as running:
        watcher = running.start(trigger(own, orders))
        await send(orders, texts(10))
        await until(lambda: tries(caplog), "a clear line")
        await asyncio.sleep(5)
        (said,) = tries(caplog)
        assert text in said
        assert "Refused, the service says." in said
        assert own.emulator.calls["StreamingPull"] == opened + 1
        own.emulator.faults.heal()
        await until(lambda: len(watcher.ids) == 10, "the messages", 120)
        assert watcher.restarts == 0


async def test_credentials_that_are_refused_are_tried_slowly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST", raising=False)
    with TokenServer() as tokens:
        tokens.refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
        connection = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": tokens.key()}}
        monkeypatch.setenv("AIRFLOW_CONN_EXPIRED", json.dumps(connection))
        async with triggerer() as running:
            watcher = running.start(PubSubSharedStreamTrigger(None, "orders", gcp_conn_id="expired"))
            await until(lambda: tries(caplog), "a clear line")
            asked = len(tokens.asked)
            await asyncio.sleep(5)
            (said,) = tries(caplog)
            assert "gcp_conn_id='expired': Google gives no token for these credentials" in said
            assert len(tokens.asked) == asked
            assert watcher.restarts == 0


def tries(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line for record in caplog.records if "next try in" in (line := record.getMessage())]

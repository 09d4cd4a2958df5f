from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.types import ReceivedMessage

import services.pubsub
from services.process import DEMAND_REAL, ServiceUnavailable, wait_until
from services.proxy import TcpProxy
from services.pubsub import ENDPOINTS, PubSubServer
from services.pubsub_subscription import PubSubSubscription


def without_googles(patch: pytest.MonkeyPatch) -> None:
    for name in (*ENDPOINTS, DEMAND_REAL):
        patch.delenv(name, raising=False)
    patch.setattr(services.pubsub, "docker_answers", lambda: False)
    patch.setattr(services.pubsub, "find_jar", lambda: None)


@pytest.fixture(name="server", scope="module", params=["what there is", "the tests' own"])
def fixture_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PubSubServer]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "the tests' own":
            without_googles(patch)
        with PubSubServer(tmp_path_factory.mktemp("pubsub")) as server:
            yield server


def test_it_says_what_was_taken(server: PubSubServer) -> None:
    known = ("environment address", "Docker image", "local process: Google's", "the tests' own emulator")
    assert server.taken.startswith(known)
    assert server.real is not server.taken.startswith("the tests' own")


def test_messages_come_back_whole(server: PubSubServer) -> None:
    orders = server.create_subscription("whole", ordered=True)
    sent = orders.send((f"body {n}" for n in range(1500)), attributes={"kind": "ü"}, ordering_key="k")
    taken = orders.take()
    assert [message.message.message_id for message in taken] == sent
    assert [message.message.data for message in taken] == [b"body %d" % n for n in range(1500)]
    assert {(message.message.attributes["kind"], message.message.ordering_key) for message in taken} == {("ü", "k")}
    assert orders.receive() == []


def test_a_large_message_goes_through(server: PubSubServer) -> None:
    orders = server.create_subscription("large")
    body = b"x" * 9_000_000
    orders.send([body])
    assert [message.message.data == body for message in orders.take()] == [True]


def test_what_is_given_back_comes_again_and_at_last_goes_to_the_dead_letters(server: PubSubServer) -> None:
    orders = server.create_subscription("poison", max_delivery_attempts=5)
    orders.send(["poison"])
    for attempt in range(1, 6):
        (received,) = pull(orders)
        assert received.delivery_attempt == attempt
        orders.extend([received], 0)
    # Google's emulator moves it when somebody receives from here again.
    assert orders.receive() == []
    assert orders.dead_letters is not None
    (dead,) = pull(orders.dead_letters)
    assert dead.message.data == b"poison"
    assert dead.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_exactly_once_names_what_failed(server: PubSubServer) -> None:
    orders = server.create_subscription("once", exactly_once=True)
    orders.send(["x"])
    received = pull(orders)
    orders.acknowledge(received)
    with pytest.raises(exceptions.InvalidArgument) as refusal:
        orders.acknowledge(received)
    assert refusal.value.reason == "EXACTLY_ONCE_ACKID_FAILURE"
    assert dict(refusal.value.metadata) == {received[0].ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}


def test_the_client_librarys_own_subscriber_and_publisher_are_served(
    server: PubSubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = server.create_subscription("library")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.endpoint)
    expected = {b"%d" % n for n in range(500)}
    seen: set[bytes] = set()
    complete = threading.Event()

    def callback(message: object) -> None:
        message.ack()  # type: ignore[attr-defined]
        seen.add(message.data)  # type: ignore[attr-defined]
        if seen == expected:
            complete.set()

    publisher, subscriber = PublisherClient(), SubscriberClient()
    running = subscriber.subscribe(orders.path, callback)
    for body in expected:
        publisher.publish(orders.topic, body)
    assert complete.wait(60)
    running.cancel()
    running.result(timeout=60)
    subscriber.close()
    publisher.stop()


def test_a_cut_network_looks_like_a_server_that_is_away(server: PubSubServer) -> None:
    orders = server.create_subscription("cut")
    orders.send(["kept"])
    with TcpProxy(server.port) as proxy:
        far = PubSubSubscription(f"127.0.0.1:{proxy.port}", server.project, "cut")
        assert far.subscriber.get_subscription(subscription=far.path).topic == orders.topic
        proxy.cut()
        with pytest.raises(exceptions.ServiceUnavailable):
            far.subscriber.get_subscription(subscription=far.path, retry=None, timeout=5)
        proxy.heal()
        assert wait_until(lambda: answers(far), limit_seconds=60)
        far.close()
    assert [message.message.data for message in orders.take()] == [b"kept"]


def test_after_a_restart_the_port_is_the_same_and_nothing_is_in_it(server: PubSubServer) -> None:
    orders = server.create_subscription("lost")
    endpoint = server.endpoint
    try:
        server.restart()
    except ServiceUnavailable:
        assert server.taken.startswith("environment address")
        return
    assert server.endpoint == endpoint
    orders.close()
    with pytest.raises(exceptions.NotFound):
        orders.receive()
    assert server.create_subscription("lost").send(["again"])


def test_without_googles_emulator_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_googles(monkeypatch)
    monkeypatch.setenv(DEMAND_REAL, "1")
    server = PubSubServer(tmp_path)
    with pytest.raises(ServiceUnavailable, match="google-cloud-cli-pubsub-emulator"):
        server.start()
    assert not (tmp_path / "pubsub.log").exists(), "refused before anything was started"


def test_an_address_is_taken_as_it_is(server: PubSubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.endpoint)
    monkeypatch.delenv(DEMAND_REAL, raising=False)
    with PubSubServer(tmp_path) as given:
        assert given.taken == f"environment address {server.endpoint}"
        assert given.project != server.project
        assert given.create_subscription("given").send(["x"])
        with pytest.raises(ServiceUnavailable, match="environment address"):
            given.restart()


def pull(subscription: PubSubSubscription) -> list[ReceivedMessage]:
    """What there is, as soon as there is something."""
    received: list[ReceivedMessage] = []

    def something() -> bool:
        received.extend(subscription.receive())
        return bool(received)

    assert wait_until(something, limit_seconds=30)
    return received


def answers(subscription: PubSubSubscription) -> bool:
    try:
        subscription.subscriber.get_subscription(subscription=subscription.path, retry=None, timeout=5)
    except exceptions.ServiceUnavailable:
        return False
    return True

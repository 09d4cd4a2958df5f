from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

import services.service_bus
from services.process import DEMAND_REAL, ServiceUnavailable, listening
from services.service_bus import CONNECTION_STRING, ServiceBusServer


@pytest.fixture(name="server", scope="module", params=["what there is", "the tests' own"])
def fixture_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceBusServer]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "the tests' own":
            patch.delenv(CONNECTION_STRING, raising=False)
            patch.setattr(services.service_bus, "docker_answers", lambda: False)
        with ServiceBusServer(tmp_path_factory.mktemp("service-bus")) as server:
            yield server


@pytest.fixture(name="client")
def fixture_client(server: ServiceBusServer) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        yield client


def take(receiver: ServiceBusReceiver, count: int) -> list[str]:
    """Receive and complete so many messages."""
    taken: list[str] = []
    while len(taken) < count:
        messages = receiver.receive_messages(count - len(taken), max_wait_time=20)
        assert messages, f"{len(taken)} of {count} messages came"
        for message in messages:
            receiver.complete_message(message)
            taken.append(str(message))
    return taken


def test_it_says_what_was_taken(server: ServiceBusServer) -> None:
    assert server.taken.startswith(("environment variable", "Docker image", "the tests' own emulator"))
    assert server.real
    assert json.loads(server.connection()) == {"conn_type": "azure_service_bus", "schema": server.connection_string}


def test_a_queue_counts_what_is_pending(server: ServiceBusServer, client: ServiceBusClient) -> None:
    orders = server.create_queue("orders")
    with client.get_queue_sender(orders) as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
    assert server.pending(orders) == 3
    with client.get_queue_receiver(orders) as receiver:
        first, second = receiver.receive_messages(2, max_wait_time=20)
        assert server.pending(orders) == 3
        receiver.complete_message(first)
        receiver.dead_letter_message(second)
    assert server.pending(orders) == 1


def test_a_subscription_gets_what_its_topic_gets(server: ServiceBusServer, client: ServiceBusClient) -> None:
    paths = [server.create_subscription("news", name) for name in ("one", "two")]
    assert paths == ["news/Subscriptions/one", "news/Subscriptions/two"]
    with client.get_topic_sender("news") as sender:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    for name, path in zip(("one", "two"), paths, strict=True):
        assert server.pending(path) == 2
        with client.get_subscription_receiver("news", name) as receiver:
            assert take(receiver, 2) == ["a", "b"]
        assert server.pending(path) == 0


def test_a_queue_with_sessions_is_read_by_session(server: ServiceBusServer, client: ServiceBusClient) -> None:
    ordered = server.create_queue("ordered", requires_session=True)
    with client.get_queue_sender(ordered) as sender:
        sender.send_messages([ServiceBusMessage(name, session_id=name) for name in ("red", "blue", "red")])
    with client.get_queue_receiver(ordered, session_id="red") as receiver:
        assert take(receiver, 2) == ["red", "red"]


def test_messages_survive_a_restart_of_the_tests_own(server: ServiceBusServer) -> None:
    if not server.taken.startswith("the tests' own"):
        with pytest.raises(ServiceUnavailable, match="takes no orders"):
            _ = server.control
        return
    kept = server.create_queue("kept", lock_seconds=30)
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(kept) as sender:
            sender.send_messages(ServiceBusMessage("a"))
        server.restart()
        with client.get_queue_receiver(kept) as receiver:
            assert take(receiver, 1) == ["a"]
    port = server.control.port
    server.kill()
    assert not listening(port)
    server.start()
    assert listening(port)
    server.create_queue("kept")
    assert server.pending("kept") == 0


def test_a_given_namespace_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = "Endpoint=sb://example.servicebus.windows.net/;SharedAccessKeyName=name;SharedAccessKey=key"
    monkeypatch.setenv(CONNECTION_STRING, given)
    server = ServiceBusServer(tmp_path)
    server.start()
    assert (server.connection_string, server.taken) == (given, f"environment variable {CONNECTION_STRING}")
    for refused in (server.restart, server.kill):
        with pytest.raises(ServiceUnavailable, match="environment variable"):
            refused()
    server.stop()


def test_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONNECTION_STRING, raising=False)
    monkeypatch.delenv(DEMAND_REAL, raising=False)
    monkeypatch.setattr(services.service_bus, "docker_answers", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServiceUnavailable, match="pip install --group servicebus-emulator"):
        ServiceBusServer(tmp_path).start()


def test_the_asynchronous_sdk_is_served_too(server: ServiceBusServer) -> None:
    from azure.servicebus.aio import ServiceBusClient as AsyncClient

    path = server.create_queue("asynchronous")

    async def send_and_take() -> str:
        async with AsyncClient.from_connection_string(server.connection_string) as client:
            async with client.get_queue_sender(path) as sender:
                await sender.send_messages(ServiceBusMessage("a"))
            async with client.get_queue_receiver(path) as receiver:
                (message,) = await receiver.receive_messages(1, max_wait_time=20)
                await receiver.complete_message(message)
                return str(message)

    assert asyncio.run(send_and_take()) == "a"
    assert server.pending(path) == 0

"""One Service Bus server for all tests of this folder, behind a proxy that can be cut."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from services.kafka_certificates import Certificates
from services.process import ServiceUnavailable
from services.proxy import TcpProxy
from services.service_bus import ServiceBusServer
from tests.emulators.service_bus import RemoteControl

NUMBERS = itertools.count()

# The SDK tells every state of every link, some thirty lines a connection.
logging.getLogger("azure.servicebus").setLevel(logging.WARNING)


class ServiceBus:
    """The server, the proxy before it, and the Airflow connection that leads through the proxy.

    What tests send and read themselves goes past the proxy, and blocks: it is for threads.
    """

    conn_id = "service_bus_tests"

    def __init__(self, server: ServiceBusServer, proxy: TcpProxy) -> None:
        self.server = server
        self.proxy = proxy
        self._client = ServiceBusClient.from_connection_string(server.connection_string)
        self._senders: dict[str, ServiceBusSender] = {}
        self._lock = threading.Lock()

    @property
    def connection_string(self) -> str:
        return through(self.server.connection_string, self.proxy.port)

    def queue(self, **options: Any) -> str:
        """A fresh queue; returns its name. `options`: those of `ServiceBusServer.create_queue`."""
        return self.server.create_queue(f"q{next(NUMBERS)}-{os.getpid()}", **options)

    def subscription(self, **options: Any) -> tuple[str, str]:
        """A fresh topic with a subscription; returns both names."""
        topic, name = f"t{next(NUMBERS)}-{os.getpid()}", "s"
        self.server.create_subscription(topic, name, **options)
        return topic, name

    def send(
        self,
        entity: str,
        bodies: Sequence[bytes | str | dict[str, Any]],
        *,
        session_id: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Add messages, in order; a dict is sent as JSON."""
        own: Any = dict(properties) if properties else None
        messages = [
            ServiceBusMessage(
                json.dumps(body) if isinstance(body, dict) else body,
                session_id=session_id,
                application_properties=own,
            )
            for body in bodies
        ]
        self.send_messages(entity, messages)

    def send_messages(self, entity: str, messages: Sequence[Any]) -> None:
        with self._lock:
            sender = self._senders.get(entity)
            if sender is None:
                # A queue's and a topic's are the same.
                sender = self._senders[entity] = self._client.get_queue_sender(entity)
            if len(messages) == 1:
                sender.send_messages(messages[0])
                return
            batch = sender.create_message_batch()
            for message in messages:
                try:
                    batch.add_message(message)
                except MessageSizeExceededError:
                    sender.send_messages(batch)
                    batch = sender.create_message_batch()
                    batch.add_message(message)
            sender.send_messages(batch)

    def take_dead_letters(self, queue: str) -> list[Any]:
        """Remove and return what was dead-lettered so far: the SDK's messages, of which it declares all as optional."""
        taken: list[Any] = []
        with self._client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
            while found := receiver.receive_messages(max_message_count=100, max_wait_time=1):
                for message in found:
                    receiver.complete_message(message)
                taken += found
        return taken

    def bury(self, queue: str, count: int) -> None:
        """Move so many messages to the dead-letter queue."""
        with self._client.get_queue_receiver(queue) as receiver:
            while count:
                for message in receiver.receive_messages(max_message_count=count, max_wait_time=5):
                    receiver.dead_letter_message(message, reason="buried", error_description="by a test")
                    count -= 1

    def count_dead_letters(self, queue: str) -> int:
        """How many lie in the dead-letter queue, at most 250."""
        with self._client.get_queue_receiver(queue, sub_queue="deadletter") as receiver:
            return len(receiver.peek_messages(max_message_count=250))

    def locked(self, path: str) -> int:
        """Messages that are with somebody."""
        return self.server.control.counts(path).locked

    def close(self) -> None:
        self._client.close()


def through(connection_string: str, port: int) -> str:
    """The connection string with another port."""
    changed, count = re.subn(r"(Endpoint=sb://127\.0\.0\.1):\d+", rf"\1:{port}", connection_string)
    assert count == 1, "these tests cut connections, and need a server on this machine"
    return changed


def body_of(message: ServiceBusReceivedMessage) -> str:
    return b"".join(message.body).decode()


def trigger(queue: str, **arguments: Any) -> ServiceBusSharedStreamTrigger:
    """A trigger on a queue."""
    return ServiceBusSharedStreamTrigger(queue, azure_service_bus_conn_id=ServiceBus.conn_id, **arguments)


async def send(service_bus: ServiceBus, entity: str, bodies: list[Any], **more: Any) -> None:
    await asyncio.to_thread(service_bus.send, entity, bodies, **more)


def emptied(service_bus: ServiceBus, path: str) -> Callable[[], Awaitable[bool]]:
    """A condition: nothing is owed there."""

    async def is_empty() -> bool:
        return await asyncio.to_thread(service_bus.server.pending, path) == 0

    return is_empty


@pytest.fixture
def orders(service_bus: ServiceBus) -> Iterator[RemoteControl]:
    """Faults on command, which the tests' own emulator alone can play."""
    try:
        control = service_bus.server.control
    except ServiceUnavailable as error:
        pytest.skip(str(error))
    yield control
    control.forget_faults()


@pytest.fixture(scope="session")
def service_bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceBus]:
    with ServiceBusServer(tmp_path_factory.mktemp("service-bus")) as server:
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", server.connection_string)[0])
        with TcpProxy(port) as proxy:
            given = ServiceBus(server, proxy)
            connection = {"conn_type": "azure_service_bus", "schema": given.connection_string}
            os.environ[f"AIRFLOW_CONN_{ServiceBus.conn_id.upper()}"] = json.dumps(connection)
            print(f"\nService Bus tests run on {server.taken}")
            yield given
            given.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def tls(certificates: Certificates) -> ssl.SSLContext:
    """Of a server on this machine."""
    issued = certificates.issue("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context

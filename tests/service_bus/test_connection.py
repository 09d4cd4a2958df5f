"""Every way to Service Bus that a connection can name."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
from azure.servicebus import TransportType
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from airflow_provider_sharedstream.brokers.service_bus.adapter import ServiceBusConsumer
from airflow_provider_sharedstream.connections import azure
from airflow_provider_sharedstream.connections.azure import service_bus_access
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from services.kafka_certificates import Certificates
from services.proxy import TcpProxy
from tests.conformance.suite import numbered, receive_all
from tests.emulators.service_bus import RemoteControl
from tests.emulators.service_bus.tokens import ALL_RIGHTS
from tests.service_bus.conftest import ServiceBus
from tests.service_bus.test_refusals import Connect, connection, refusal

__all__ = ["connection"]

NAMESPACE = "contoso.servicebus.windows.net"


async def access_of(conn_id: str) -> azure.ServiceBusAccess:
    access = await service_bus_access(conn_id)
    await access.close()
    return access


async def receives(queue: str, conn_id: str, service_bus: ServiceBus) -> None:
    """Assert that a message comes that way, and can be settled."""
    consumer = ServiceBusConsumer(queue, azure_service_bus_conn_id=conn_id)
    await asyncio.wait_for(consumer.connect(), 60)
    try:
        await asyncio.to_thread(service_bus.send, queue, numbered(3))
        found = await receive_all(consumer, 3)
        assert not await consumer.extend_leases(found)
        assert not await consumer.settle(Disposition.ACCEPT, found)
        assert await asyncio.to_thread(service_bus.server.pending, queue) == 0
    finally:
        await consumer.close()


async def test_a_connection_string(connection: Connect) -> None:
    string = f"Endpoint=sb://{NAMESPACE}/;SharedAccessKeyName=policy;SharedAccessKey=secret"
    for fields in ({"schema": string}, {"extra": {"connection_string": string}}):
        access = await access_of(connection(fields))
        assert access.namespace == NAMESPACE
        assert access.credential is None


@pytest.mark.parametrize("prefix", ["", "extra__azure_service_bus__"])
async def test_the_official_fields_of_an_identity(
    connection: Connect, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {}

    class Noted(DefaultAzureCredential):
        def __init__(self, **given: Any) -> None:
            options.update(given)
            super().__init__(**given)

        async def get_token(self, *_: str, **__: Any) -> AccessToken:
            return AccessToken("a token", int(time.time()) + 3600)

    monkeypatch.setattr("azure.identity.aio.DefaultAzureCredential", Noted)
    fields = {
        "fully_qualified_namespace": NAMESPACE,
        "managed_identity_client_id": "an-identity",
        "workload_identity_tenant_id": "00000000-0000-0000-0000-000000000001",
    }
    access = await access_of(connection({"extra": {f"{prefix}{name}": value for name, value in fields.items()}}))
    assert access.namespace == NAMESPACE
    assert isinstance(access.credential, DefaultAzureCredential)
    assert options["managed_identity_client_id"] == "an-identity"
    assert options["workload_identity_tenant_id"] == "00000000-0000-0000-0000-000000000001"


async def test_a_client_secret(connection: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"login": "client", "password": "secret", "extra": {"fully_qualified_namespace": NAMESPACE}}
    with pytest.raises(SourceUnavailable, match="tenant_id in extra"):
        await service_bus_access(connection(fields))
    fields["extra"] = {"fully_qualified_namespace": NAMESPACE, "tenant_id": "00000000-0000-0000-0000-000000000001"}

    async def get_token(self: Any, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == (azure.SCOPE,)
        return AccessToken("a token", int(time.time()) + 3600)

    monkeypatch.setattr(ClientSecretCredential, "get_token", get_token)
    access = await access_of(connection(fields))
    assert isinstance(access.credential, ClientSecretCredential)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "it names no namespace"),
        ({"schema": "nonsense"}, "its connection string or its credentials can't be used"),
        ({"schema": "Endpoint=sb://x/;SharedAccessKey=dontshow"}, "must have both"),
        ({"extra": {"fully_qualified_namespace": NAMESPACE, "credential": "x"}}, "credential is not understood"),
        ({"extra": {"transport_type": "pigeon"}}, "expected one of amqp, websocket"),
        ({"extra": {"http_proxy": "proxy.example"}}, "expected an address with a port"),
    ],
)
async def test_what_a_connection_lacks(connection: Connect, fields: dict[str, Any], text: str) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        await service_bus_access(connection(fields))
    assert str(caught.value).startswith("azure_service_bus_conn_id='service_bus_other': ")
    assert text in str(caught.value)
    assert "dontshow" not in str(caught.value)


async def test_no_such_connection() -> None:
    with pytest.raises(SourceUnavailable, match="azure_service_bus_conn_id='nowhere': there is no such connection"):
        await service_bus_access("nowhere")


async def test_a_proxy_given_as_an_address_or_as_the_sdk_wants_it(connection: Connect) -> None:
    string = f"Endpoint=sb://{NAMESPACE}/;SharedAccessKeyName=policy;SharedAccessKey=secret"
    wanted = {"proxy_hostname": "http://proxy.example", "proxy_port": 3128, "username": "me", "password": "p@ss"}
    for given in ("http://me:p%40ss@proxy.example:3128", {**wanted, "proxy_hostname": "proxy.example"}):
        access = await access_of(connection({"schema": string, "extra": {"http_proxy": given}}))
        assert access.client._config.http_proxy == wanted
        assert access.client._config.transport_type is TransportType.AmqpOverWebsocket


async def test_websockets_to_a_custom_endpoint(
    service_bus: ServiceBus, orders: RemoteControl, connection: Connect
) -> None:
    extra = {"transport_type": "websocket", "custom_endpoint_address": f"sb://127.0.0.1:{orders.open_websocket()}"}
    conn_id = connection({"schema": service_bus.server.connection_string, "extra": extra})
    await receives(service_bus.queue(), conn_id, service_bus)


async def test_through_an_http_proxy(
    service_bus: ServiceBus, orders: RemoteControl, connection: Connect, http_proxy: HttpProxy
) -> None:
    extra = {
        "http_proxy": f"http://127.0.0.1:{http_proxy.port}",
        "custom_endpoint_address": f"sb://127.0.0.1:{orders.open_websocket()}",
    }
    conn_id = connection({"schema": service_bus.server.connection_string, "extra": extra})
    await receives(service_bus.queue(), conn_id, service_bus)
    assert http_proxy.asked


async def test_through_an_http_proxy_to_a_server_with_tls(
    service_bus: ServiceBus,
    orders: RemoteControl,
    connection: Connect,
    http_proxy: HttpProxy,
    certificates: Certificates,
    tls: ssl.SSLContext,
) -> None:
    with TcpProxy(orders.open_websocket(), tls=tls) as front:
        extra = {
            "http_proxy": f"http://127.0.0.1:{http_proxy.port}",
            "custom_endpoint_address": f"sb://127.0.0.1:{front.port}",
            "connection_verify": str(certificates.ca_file),
        }
        secured = service_bus.server.connection_string.replace("UseDevelopmentEmulator=true", "")
        await receives(service_bus.queue(), connection({"schema": secured, "extra": extra}), service_bus)
        assert set(http_proxy.asked) == {f"CONNECT 127.0.0.1:{front.port}"}


class Credential:
    """What azure-identity's credentials are to the SDK; a directory to ask for a token isn't there."""

    closed = False

    def __init__(self, token: str, seconds: int = 3600) -> None:
        self.token = token
        self.seconds = seconds
        self.asked = 0

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        assert scopes == ("https://servicebus.azure.net//.default",)
        self.asked += 1
        return AccessToken(self.token, int(time.time()) + self.seconds)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def sign_in(orders: RemoteControl, monkeypatch: pytest.MonkeyPatch) -> Callable[[Credential], None]:
    """Makes the adapter use a credential."""

    def use(credential: Credential) -> None:
        async def access(conn_id: str) -> azure.ServiceBusAccess:
            client = ServiceBusClient(f"127.0.0.1:{orders.port}", credential, use_tls=False, retry_total=0)  # type: ignore[arg-type]
            return azure.ServiceBusAccess(client, credential, client.fully_qualified_namespace)

        monkeypatch.setattr("airflow_provider_sharedstream.brokers.service_bus.adapter.service_bus_access", access)

    return use


async def test_a_directory_s_token(
    service_bus: ServiceBus, orders: RemoteControl, sign_in: Callable[[Credential], None]
) -> None:
    orders.add_bearer("known", ALL_RIGHTS)
    credential = Credential("known")
    sign_in(credential)
    await receives(service_bus.queue(), "any", service_bus)
    assert credential.closed
    credential.token = "unknown"
    text = await refusal(service_bus.queue())
    assert "refuses its credentials" in text


@pytest.mark.slow
async def test_a_token_is_renewed_while_nothing_comes(
    service_bus: ServiceBus, orders: RemoteControl, sign_in: Callable[[Credential], None]
) -> None:
    orders.add_bearer("renewed", ALL_RIGHTS, seconds=10)
    credential = Credential("renewed", seconds=10)
    sign_in(credential)
    queue = service_bus.queue()
    consumer = ServiceBusConsumer(queue)
    await consumer.connect()
    opened, asked = orders.statistics().connections_opened, credential.asked
    receiving = asyncio.create_task(receive_all(consumer, 1))
    await asyncio.sleep(25)
    assert credential.asked >= asked + 2
    await asyncio.to_thread(service_bus.send, queue, numbered(1))
    assert not await consumer.settle(Disposition.ACCEPT, await receiving)
    await consumer.close()
    # What sends has opened one.
    assert orders.statistics().connections_opened <= opened + 1


async def test_a_token_that_runs_out_while_nobody_receives(
    service_bus: ServiceBus, orders: RemoteControl, sign_in: Callable[[Credential], None]
) -> None:
    orders.add_bearer("short-lived", ALL_RIGHTS, seconds=2)
    sign_in(Credential("short-lived", seconds=2))
    queue = service_bus.queue()
    consumer = ServiceBusConsumer(queue)
    await consumer.connect()
    await asyncio.to_thread(service_bus.send, queue, numbered(3))
    found = await receive_all(consumer, 3)
    # The server detaches the link.
    await asyncio.sleep(4)
    failures = await consumer.settle(Disposition.ACCEPT, found)
    assert failures
    assert all(consumer.is_transient(error) for error in failures.values()), failures
    assert not await consumer.settle(Disposition.ACCEPT, list(failures))
    await asyncio.sleep(4)
    with pytest.raises((ServiceBusError, ConnectionError)) as caught:
        await consumer.receive(10)
    assert consumer.is_transient(caught.value)
    await consumer.connect()
    await consumer.close()


async def test_credentials_that_give_no_token(connection: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_CLIENT_ID", "AZURE_TENANT_ID", "AZURE_CLIENT_SECRET", "AZURE_USERNAME"):
        monkeypatch.delenv(name, raising=False)
    # Of the default chain, only this one: on Azure, others would find somebody.
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    conn_id = connection({"extra": {"fully_qualified_namespace": NAMESPACE}})
    text = await refusal("any", azure_service_bus_conn_id=conn_id)
    assert text.startswith("azure_service_bus_conn_id='service_bus_other': its credentials give no token: ")
    assert "EnvironmentCredential" in text


class HttpProxy:
    """A forward proxy for CONNECT, and for plain requests, whose address it makes relative."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, version = head.split("\r\n", 1)[0].split(" ")
        self.asked.append(f"{method} {target}")
        address = target if method == "CONNECT" else target.split("/")[2]
        host, _, port = address.rpartition(":")
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        if method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            path = "/" + target.split("/", 3)[3]
            far_writer.write(head.replace(f"{method} {target} {version}", f"{method} {path} {version}", 1).encode())
        try:
            await asyncio.gather(_pass_on(reader, far_writer), _pass_on(far_reader, writer))
        finally:
            writer.close()
            far_writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(65536):
        writer.write(piece)
    writer.close()


@pytest.fixture
async def http_proxy() -> AsyncIterator[HttpProxy]:
    proxy = HttpProxy()
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    yield proxy
    server.close()

"""Identities, over TLS, from end to end: the SDK and azure-identity as they are, and a token endpoint of our own.

Each triggerer is a process with the environment that the identity needs.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from services.kafka_certificates import Certificates
from services.proxy import TcpProxy
from tests.emulators.service_bus import RemoteControl
from tests.emulators.service_bus.tokens import LISTEN
from tests.service_bus.conftest import ServiceBus, trigger
from tests.service_bus.tokens import MANAGED_PATH, TokenServer
from tests.triggerer_process import TriggererProcess, wait

NAMESPACE = "contoso.servicebus.windows.net"
TENANT = "00000000-0000-0000-0000-000000000001"
SECRET = "a secret"

Start = Callable[..., TriggererProcess]


@pytest.fixture
def tokens(tls: ssl.SSLContext) -> Iterator[TokenServer]:
    with TokenServer(tls) as server:
        yield server


@pytest.fixture
def start(
    service_bus: ServiceBus,
    orders: RemoteControl,
    certificates: Certificates,
    tls: ssl.SSLContext,
    tokens: TokenServer,
    tmp_path: Path,
) -> Iterator[Start]:
    """Starts a triggerer that has nothing but the connection's fields and the environment given."""
    with ExitStack() as fronts:

        def make(queue: str, env: Mapping[str, str], *, extra: Mapping[str, str], **fields: str) -> TriggererProcess:
            websocket = extra.get("transport_type") == "websocket"
            front = fronts.enter_context(TcpProxy(orders.open_websocket() if websocket else orders.port, tls=tls))
            way = {
                "fully_qualified_namespace": NAMESPACE,
                "custom_endpoint_address": f"sb://127.0.0.1:{front.port}",
                "transport_type": "amqp",
                "connection_verify": str(certificates.ca_file),
            }
            connection = {"conn_type": "azure_service_bus", "extra": {**way, **extra}, **fields}
            own = {
                f"AIRFLOW_CONN_{ServiceBus.conn_id.upper()}": json.dumps(connection),
                "AZURE_AUTHORITY_HOST": tokens.url,
                "SSL_CERT_FILE": str(certificates.ca_file),
            }
            return TriggererProcess(tmp_path / "triggerer", trigger(queue), env={**own, **env})

        yield make


@pytest.fixture(autouse=True)
def _nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the identities that this process may have, none is passed on."""
    for name in ("CLIENT_ID", "TENANT_ID", "CLIENT_SECRET", "USERNAME", "FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(f"AZURE_{name}", raising=False)
    monkeypatch.delenv("IDENTITY_ENDPOINT", raising=False)


def receives(service_bus: ServiceBus, queue: str, triggerer: TriggererProcess) -> None:
    """Assert that a message comes to it, and is completed."""
    service_bus.send(queue, [{"n": 1}])
    wait(lambda: triggerer.bodies == [{"n": 1}], "the message")
    wait(lambda: service_bus.server.pending(queue) == 0, "an empty queue")


@pytest.mark.parametrize("transport", ["amqp", "websocket"])
def test_a_client_s_secret(
    service_bus: ServiceBus, orders: RemoteControl, tokens: TokenServer, start: Start, transport: str
) -> None:
    queue = service_bus.queue()
    orders.add_bearer("token-of-its-client", [LISTEN])
    tokens.secrets.add(SECRET)
    extra = {"tenant_id": TENANT, "transport_type": transport}
    with start(queue, {}, extra=extra, login="its-client", password=SECRET) as triggerer:
        receives(service_bus, queue, triggerer)
    assert set(tokens.asked) == {f"/{TENANT}/oauth2/v2.0/token"}


def test_the_default_chain_finds_the_environment(
    service_bus: ServiceBus, orders: RemoteControl, tokens: TokenServer, start: Start
) -> None:
    queue = service_bus.queue()
    orders.add_bearer("token-of-the-environment", [LISTEN])
    tokens.secrets.add(SECRET)
    env = {"AZURE_CLIENT_ID": "the-environment", "AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_SECRET": SECRET}
    with start(queue, env, extra={}) as triggerer:
        receives(service_bus, queue, triggerer)


def test_a_managed_identity(service_bus: ServiceBus, orders: RemoteControl, tokens: TokenServer, start: Start) -> None:
    queue = service_bus.queue()
    orders.add_bearer("token-of-an-identity", [LISTEN])
    tokens.secrets.add(SECRET)
    env = {"IDENTITY_ENDPOINT": tokens.url + MANAGED_PATH, "IDENTITY_HEADER": SECRET}
    with start(queue, env, extra={"managed_identity_client_id": "an-identity"}) as triggerer:
        receives(service_bus, queue, triggerer)
    assert set(tokens.asked) == {MANAGED_PATH}


def test_a_workload_s_identity(
    service_bus: ServiceBus, orders: RemoteControl, tokens: TokenServer, start: Start, tmp_path: Path
) -> None:
    queue = service_bus.queue()
    orders.add_bearer("token-of-a-workload", [LISTEN])
    tokens.secrets.add("a federated token")
    file = tmp_path / "token"
    file.write_text("a federated token")
    env = {"AZURE_FEDERATED_TOKEN_FILE": str(file), "AZURE_CLIENT_ID": "a-workload", "AZURE_TENANT_ID": "another"}
    extra = {"managed_identity_client_id": "a-workload", "workload_identity_tenant_id": TENANT}
    with start(queue, env, extra=extra) as triggerer:
        receives(service_bus, queue, triggerer)
    assert set(tokens.asked) == {f"/{TENANT}/oauth2/v2.0/token"}


def test_a_wrong_secret_and_an_identity_without_a_role(
    service_bus: ServiceBus, orders: RemoteControl, tokens: TokenServer, start: Start
) -> None:
    queue = service_bus.queue()
    fields: dict[str, Any] = {"extra": {"tenant_id": TENANT}, "login": "its-client", "password": SECRET}
    with start(queue, {}, **fields) as triggerer:
        wait(lambda: "next try in" in triggerer.log, "a clear line")
        assert "azure_service_bus_conn_id='service_bus_tests': its credentials give no token" in triggerer.log
        assert "AADSTS7000215: Invalid client secret provided." in triggerer.log
    tokens.secrets.add(SECRET)
    orders.add_bearer("token-of-its-client", [])
    with start(queue, {}, **fields) as triggerer:
        wait(lambda: "may not receive from it" in triggerer.log, "a clear line")
        assert "role Azure Service Bus Data Receiver" in triggerer.log

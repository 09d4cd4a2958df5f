"""From an ``azure_service_bus`` connection to a Service Bus client.

The fields are those of the official Azure provider, which isn't needed: a connection string, or the namespace's host
with an identity. What the official one doesn't offer is in the extra: a client secret, a proxy, WebSockets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

ARGUMENT = "azure_service_bus_conn_id"
TRANSPORTS = ("amqp", "websocket")
SCOPE = "https://servicebus.azure.net//.default"
"""What the SDK asks tokens for."""
LONGEST_TEXT = 600
"""Characters of what azure-identity says, which is a line for each way that it has tried."""


class ServiceBusAccess(NamedTuple):
    """A client, and what has to be closed with it."""

    client: Any
    """``azure.servicebus.aio.ServiceBusClient``."""
    credential: Any
    """Of azure-identity; None where the client has a key."""
    namespace: str
    """The namespace's host."""

    async def close(self) -> None:
        """Close both."""
        await self.client.close()
        if self.credential is not None:
            await self.credential.close()


async def service_bus_access(conn_id: str) -> ServiceBusAccess:
    """Return a client; nothing has been asked of Service Bus yet.

    :param conn_id: the Airflow connection.
    :raises SourceUnavailable: the connection is missing, can't be used, or leads to no token; the text says what to
        change.
    """
    connection = await connection_of(ARGUMENT, conn_id, "azure_service_bus")
    if connection is None:
        raise missing(ARGUMENT, conn_id)
    where = f"{ARGUMENT}={conn_id!r}"
    try:
        from azure.servicebus.aio import ServiceBusClient
    except ImportError as error:
        raise SourceUnavailable(
            f"the Service Bus client is not installed ({error}); install airflow-provider-sharedstream[servicebus]"
        ) from error
    # It tells every state of every link at INFO, some thirty lines a connection.
    if (sdk := logging.getLogger("azure.servicebus")).level == logging.NOTSET:
        sdk.setLevel(logging.WARNING)
    fields = _Fields(connection.extra_dejson)
    # The machine retries, so that every failure is seen, counted and slowed down in one place.
    options = {"retry_total": 0, **_transport(fields, where)}
    connection_string = connection.schema or fields.text("connection_string")
    try:
        if connection_string:
            client = ServiceBusClient.from_connection_string(connection_string, **options)
            return ServiceBusAccess(client, None, client.fully_qualified_namespace)
        namespace = fields.text("fully_qualified_namespace") or connection.host
        if not namespace:
            raise SourceUnavailable(
                f"{where}: it names no namespace. Give it a connection string (in the field schema), or "
                "fully_qualified_namespace in its extra, such as 'contoso.servicebus.windows.net'."
            )
        credential = _credential(connection, fields, where)
        await _prove(credential, where)
        client = ServiceBusClient(namespace, credential, **options)
    except ValueError as error:
        # Never the connection string itself: it holds the key.
        raise SourceUnavailable(f"{where}: its connection string or its credentials can't be used: {error}") from error
    return ServiceBusAccess(client, credential, client.fully_qualified_namespace)


class _Fields:
    """The fields of the extra, under either of their two names; an empty one counts as absent."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self._extra = extra

    def get(self, *names: str) -> Any:
        for name in names:
            for key in (name, f"extra__azure_service_bus__{name}"):
                if self._extra.get(key) not in (None, ""):
                    return self._extra[key]
        return None

    def text(self, *names: str) -> str | None:
        value = self.get(*names)
        return None if value is None else str(value)


def _credential(connection: Any, fields: _Fields, where: str) -> Any:
    """Return a client secret where the connection has a login and a password, else the default chain."""
    try:
        from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
    except ImportError as error:
        raise SourceUnavailable(
            f"azure-identity is not installed ({error}); install airflow-provider-sharedstream[servicebus]"
        ) from error

    if fields.get("credential") is not None:
        raise SourceUnavailable(
            f"{where}: credential is not understood. Use a connection string, login and password with tenant_id (a "
            "client's id and secret), managed_identity_client_id, or none of them for the default chain of credentials."
        )
    tenant = fields.text("tenant_id", "tenantId")
    if connection.login or connection.password:
        if not (connection.login and connection.password and tenant):
            raise SourceUnavailable(
                f"{where}: a client secret needs the client's id in login, the secret in password, tenant_id in extra"
            )
        return ClientSecretCredential(tenant, connection.login, connection.password)
    options: dict[str, Any] = {}
    if identity := fields.text("managed_identity_client_id"):
        options["managed_identity_client_id"] = identity
    if workload_tenant := fields.text("workload_identity_tenant_id"):
        options["workload_identity_tenant_id"] = workload_tenant
        options["additionally_allowed_tenants"] = [workload_tenant]
    return DefaultAzureCredential(**options)


async def _prove(credential: Any, where: str) -> None:
    """Fetch a token now: later, the SDK reports a refused one as an error of its own that it did not foresee."""
    from azure.core.exceptions import ClientAuthenticationError

    try:
        await credential.get_token(SCOPE)
    except ClientAuthenticationError as error:
        await credential.close()
        text = " ".join(str(error).split())
        raise SourceUnavailable(f"{where}: its credentials give no token: {text[:LONGEST_TEXT]}") from error
    except BaseException:
        await credential.close()
        raise


def _transport(fields: _Fields, where: str) -> dict[str, Any]:
    """Return how the client gets to Service Bus."""
    from azure.servicebus import TransportType

    options: dict[str, Any] = {}
    if (transport := fields.text("transport_type")) is not None:
        if transport not in TRANSPORTS:
            raise SourceUnavailable(f"{where}: transport_type={transport!r}: expected one of {', '.join(TRANSPORTS)}")
        options["transport_type"] = TransportType.AmqpOverWebsocket if transport == "websocket" else TransportType.Amqp
    if (proxy := fields.get("http_proxy")) is not None:
        options["http_proxy"] = _proxy(proxy, where)
    if address := fields.text("custom_endpoint_address"):
        options["custom_endpoint_address"] = address
    if bundle := fields.text("connection_verify"):
        options["connection_verify"] = bundle
    return options


def _proxy(value: Any, where: str) -> dict[str, Any]:
    """Return a proxy as the SDK wants it: given so already, or as an address."""
    if isinstance(value, Mapping):
        proxy = dict(value)
    else:
        parts = urlsplit(str(value))
        proxy = {"proxy_hostname": parts.hostname, "proxy_port": parts.port}
        if parts.username:
            proxy |= {"username": unquote(parts.username), "password": unquote(parts.password or "")}
    host = proxy.get("proxy_hostname")
    if not host or not proxy.get("proxy_port"):
        raise SourceUnavailable(
            f"{where}: http_proxy: expected an address with a port, such as 'http://proxy.example:3128'"
        )
    # The SDK's documentation has a bare name here; what it is built on takes addresses only.
    return {**proxy, "proxy_hostname": host if "://" in host else f"http://{host}"}

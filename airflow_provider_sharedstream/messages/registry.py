"""Bodies whose schema is in a Confluent-compatible schema registry: Avro and JSON Schema, with Confluent's own
client.

The client and its decoders are in the extra ``schema-registry``. A schema is fetched once, the first time that a
message names it; everything is asynchronous, so that a slow registry holds up nobody else in the triggerer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from airflow_provider_sharedstream.messages.bodies import short_text
from airflow_provider_sharedstream.messages.payload import base64_text, storable
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable, UndecodableMessage

DEFAULT_CONNECTION = "schema_registry_default"
TIMEOUT_SECONDS = 10
"""How long one request to the registry may take, where the connection's ``timeout`` says nothing else."""

_BY_NUMBER_ALONE: Mapping[str, Any] = {"subject.name.strategy": lambda context, record_name: None}
"""A message names its schema; without a subject the client asks for nothing else."""

_HEADER_BYTES = 5
"""Confluent's wire format: a zero, and the schema's number in four bytes."""
_NOT_FOUND = 404


class SchemaRegistry:
    """One registry, as one event loop uses it.

    :param conn_id: an Airflow connection: host (or URL) and port; login and password for basic authentication; in
        ``extra`` whatever else Confluent's client takes (``url``, ``ssl.ca.location``, ``timeout``,
        ``bearer.auth.token``, ...).
    """

    def __init__(self, conn_id: str) -> None:
        self.conn_id = conn_id
        self.lock = asyncio.Lock()
        """Held by the watcher that decodes, so that the others find what it decoded."""
        self._client: Any = None
        self._decoders: dict[str, Any] = {}

    async def decode(self, data: bytes) -> Any:
        """Return the body that ``data`` holds, storable. Bytes in it become base64.

        :raises UndecodableMessage: it isn't in the registry's format, its schema isn't there, or it doesn't fit its
            schema.
        :raises SourceUnavailable: the registry can't be used now; it isn't the message's fault.
        :raises InvalidArgument: the client isn't installed.
        """
        if len(data) <= _HEADER_BYTES or data[0] != 0:
            raise UndecodableMessage("the body isn't in a schema registry's format: it begins with no schema number")
        schema_number = int.from_bytes(data[1:_HEADER_BYTES], "big")
        try:
            decoder = await self._decoder(schema_number)
            return storable(_without_bytes(await decoder(data)))
        except (UndecodableMessage, SourceUnavailable, InvalidArgument):
            raise
        except Exception as error:
            judged = _judged(error, schema_number, self.conn_id)
            if isinstance(judged, SourceUnavailable):
                await self._forget()
            raise judged from error

    async def _decoder(self, schema_number: int) -> Any:
        if self._client is None:
            self._client = _client(await _configuration(self.conn_id))
        kind = (await self._client.get_schema(schema_number)).schema_type or "AVRO"
        if kind not in self._decoders:
            self._decoders[kind] = await _new_decoder(kind, self._client)
        return self._decoders[kind]

    async def _forget(self) -> None:
        """Let what comes next read the connection again: somebody may have to change it."""
        client, self._client = self._client, None
        self._decoders.clear()
        with suppress(Exception):
            await client.aclose()


_registries: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, SchemaRegistry]] = WeakKeyDictionary()


def registry_of(conn_id: str) -> SchemaRegistry:
    """Return the running loop's registry of this connection: one client, however many watchers."""
    of_loop = _registries.setdefault(asyncio.get_running_loop(), {})
    return of_loop.setdefault(conn_id, SchemaRegistry(conn_id))


def _judged(error: Exception, schema_number: int, conn_id: str) -> Exception:
    """Tell a fault of the message from one of the registry."""
    said = f"{type(error).__name__}: {short_text(error)}"
    status = getattr(error, "http_status_code", None)
    if status == _NOT_FOUND:
        return UndecodableMessage(f"the schema registry has no schema {schema_number}")
    if status is not None or _is_of_transport(error):
        return SourceUnavailable(f"the schema registry of connection {conn_id!r} can't be used: {said}")
    return UndecodableMessage(f"the body doesn't fit schema {schema_number}: {said}")


async def _configuration(conn_id: str) -> dict[str, Any]:
    from airflow.sdk.bases.hook import BaseHook

    try:
        connection = await BaseHook.aget_connection(conn_id)
    except Exception as error:
        raise SourceUnavailable(
            f"the connection {conn_id!r} of the schema registry can't be read: {short_text(error)}"
        ) from error
    configuration: dict[str, Any] = {"timeout": TIMEOUT_SECONDS, **connection.extra_dejson}
    if "url" not in configuration:
        if not connection.host:
            raise SourceUnavailable(f"the connection {conn_id!r} of the schema registry has no host")
        # `schema` is the protocol in HTTP connections, and the path in an address that was written as one.
        schema = connection.schema or ""
        protocol, path = (schema, "") if schema in ("http", "https") else ("http", f"/{schema}" if schema else "")
        host = connection.host if "://" in connection.host else f"{protocol}://{connection.host}"
        configuration["url"] = f"{host}:{connection.port}{path}" if connection.port else f"{host}{path}"
    if connection.login:
        configuration.setdefault("basic.auth.user.info", f"{connection.login}:{connection.password or ''}")
    return configuration


def require_client() -> Any:
    """Return the class of Confluent's client.

    :raises InvalidArgument: it isn't installed.
    """
    try:
        from confluent_kafka.schema_registry import AsyncSchemaRegistryClient
    except ImportError as error:
        raise InvalidArgument(
            "decode: schema_registry needs Confluent's client: "
            f"pip install 'airflow-provider-sharedstream[schema-registry]' ({error})"
        ) from None
    return AsyncSchemaRegistryClient


def _client(configuration: Mapping[str, Any]) -> Any:
    try:
        return require_client()(dict(configuration))
    except (ValueError, TypeError) as error:
        raise SourceUnavailable(f"the schema registry's connection is wrong: {short_text(error)}") from error


async def _new_decoder(kind: str, client: Any) -> Any:
    if kind == "AVRO":
        from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer

        return await AsyncAvroDeserializer(client, conf=dict(_BY_NUMBER_ALONE))
    if kind == "JSON":
        from confluent_kafka.schema_registry.json_schema import AsyncJSONDeserializer

        return await AsyncJSONDeserializer(None, schema_registry_client=client, conf=dict(_BY_NUMBER_ALONE))
    raise UndecodableMessage(f"the schema is of kind {kind}: only AVRO and JSON can be decoded")


def _is_of_transport(error: BaseException) -> bool:
    # The client's HTTP library has changed its name once.
    return any(kind.__name__ in ("TransportError", "OAuthTokenError", "OSError") for kind in type(error).__mro__)


def _without_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64_text(value)
    if isinstance(value, dict):
        return {name: _without_bytes(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_bytes(item) for item in value]
    return value

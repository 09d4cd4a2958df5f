"""What every client of aiokafka needs: to be stopped within bounds, and to be asked why it can't connect."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from typing import Any

from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long a client may take to say goodbye. A group that waits for others in a rebalance may take longer."""
PASSING = (OSError, EOFError, TimeoutError, asyncio.TimeoutError)
"""What a broker that is away, or being started, comes to."""
PROBE_SECONDS = 10.0
"""How long a broker may take to say why it can't be used."""


async def stopped(client: Any, connections: Any) -> None:
    """Stop a consumer or a producer, and close its connections whatever comes of it.

    :param client: ends on ``stop()``, which may raise, be cancelled by a task of its own, or wait for brokers.
    :param connections: aiokafka's client within it.
    """
    stopping = asyncio.create_task(_stop(client), name="sharedstream-kafka-stop")
    try:
        await asyncio.wait({stopping}, timeout=STOP_SECONDS)
    finally:
        if not stopping.done():
            stopping.cancel()
        # What waits for an answer ends with the connection.
        closing = asyncio.ensure_future(connections.close())
        closing.add_done_callback(_look_at)
        await asyncio.wait({closing, stopping}, timeout=STOP_SECONDS)


async def _stop(client: Any) -> None:
    try:
        await client.stop()
    except Exception as error:
        log.debug("A Kafka client didn't stop cleanly: %s", error_text(error))


def _look_at(done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        log.debug("Closing connections to Kafka: %s", error_text(error))


async def why_unreachable(client: Mapping[str, Any]) -> Exception:
    """Return why none of the brokers named can be used; aiokafka itself says it in its log alone.

    :param client: aiokafka's arguments of a client.
    """
    from aiokafka.conn import collect_hosts

    try:
        hosts = collect_hosts(client["bootstrap_servers"], randomize=False)
    except ValueError as error:
        return SourceUnavailable(f"bootstrap.servers={client['bootstrap_servers']!r} can't be understood: {error}")
    reasons = await asyncio.gather(*(_why_not(host, port, client) for host, port, _ in hosts))
    found = [(f"{host}:{port}", reason) for (host, port, _), reason in zip(hosts, reasons, strict=True) if reason]
    for _, reason in found:
        if isinstance(reason, (SourceUnavailable, ssl.SSLError)) or not isinstance(reason, PASSING):
            return reason
    said = "; ".join(f"{address}: {_in_words(reason)}" for address, reason in found)
    return ConnectionError(f"no broker can be reached ({said})" if said else "the brokers answer no more")


def _in_words(reason: Exception) -> str:
    if isinstance(reason, (EOFError, ConnectionResetError)):
        return f"it hangs up; does security.protocol fit this port? ({type(reason).__name__})"
    return error_text(reason)


async def _why_not(host: str, port: int, client: Mapping[str, Any]) -> Exception | None:
    from aiokafka.conn import AIOKafkaConnection, OAuthAuthenticator
    from aiokafka.errors import KafkaConnectionError

    class Authenticator(OAuthAuthenticator):  # type: ignore[misc]
        """A broker that refuses a token says why, and gives its verdict when that is acknowledged. aiokafka takes the
        reason for consent.
        """

        async def step(self, payload: bytes | None) -> Any:
            return (b"\x01", True) if payload else await super().step(payload)

    class Connection(AIOKafkaConnection):  # type: ignore[misc]
        def authenticator_oauth(self) -> Any:
            return Authenticator(sasl_oauth_token_provider=self._sasl_oauth_token_provider)

    names = (
        "client_id",
        "ssl_context",
        "security_protocol",
        "sasl_mechanism",
        "sasl_plain_username",
        "sasl_plain_password",
        "sasl_kerberos_service_name",
        "sasl_oauth_token_provider",
    )
    arguments = {name: client[name] for name in names if name in client}
    try:
        connection = Connection(host, port, request_timeout_ms=int(PROBE_SECONDS * 1000), **arguments)
        try:
            await asyncio.wait_for(connection.connect(), PROBE_SECONDS)
        finally:
            connection.close()
    except Exception as error:
        # TLS to a plain port, plain text to a TLS port: aiokafka says "closed", and the reason is behind it.
        cause = error.__cause__ if isinstance(error, KafkaConnectionError) else None
        return cause if isinstance(cause, Exception) else error
    return None

"""From a ``kafka`` connection to a client's arguments.

The connection is the official provider's: its extra holds the configuration of librdkafka. A key that means nothing
here is named in a warning; one that changes who may do what, or what is read, and can't be followed is an error.

==================  =============================================
``kafka_keys``      what becomes of each key
``kafka_tls``       ``ssl.*`` to an SSL context
``kafka_tokens``    tokens for ``OAUTHBEARER``
==================  =============================================
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from airflow_provider_sharedstream.connections.kafka_keys import DEFAULTS, OURS, REFUSED, TABLE
from airflow_provider_sharedstream.connections.kafka_tls import TLS_KEYS, tls_context
from airflow_provider_sharedstream.connections.kafka_tokens import TOKEN_KEYS, token_provider
from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

OffsetReset = Literal["earliest", "latest", "none"]


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """What the connection and the trigger's arguments say.

    :param client: aiokafka's arguments for every client.
    :param consumer: those of its consumer alone.
    :param producer: those of its producer alone.
    :param group_id: the consumer group.
    :param auto_offset_reset: where a group without a committed offset begins.
    :param without_effect: keys of the connection that mean nothing here.
    """

    client: Mapping[str, Any]
    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]
    group_id: str
    auto_offset_reset: OffsetReset
    without_effect: tuple[str, ...] = ()


async def kafka_settings(
    kafka_config_id: str, *, group_id: str | None = None, auto_offset_reset: OffsetReset | None = None
) -> KafkaSettings:
    """Look the connection up and translate it.

    :param kafka_config_id: the Airflow connection.
    :param group_id: goes before the connection's ``group.id``.
    :param auto_offset_reset: goes before the connection's ``auto.offset.reset``.
    :raises SourceUnavailable: it is missing, or says what can't be followed.
    """
    connection = await connection_of("kafka_config_id", kafka_config_id, "kafka")
    if connection is None:
        raise missing("kafka_config_id", kafka_config_id)
    extra = connection.extra_dejson
    where = f"kafka_config_id={kafka_config_id!r}"
    # Reads certificates from files.
    return await asyncio.to_thread(settings_from, extra, where, group_id, auto_offset_reset)


def settings_from(
    extra: Mapping[str, Any],
    where: str,
    group_id: str | None = None,
    auto_offset_reset: OffsetReset | None = None,
) -> KafkaSettings:
    """Translate a connection's extra.

    :param where: the connection in words, for messages.
    :raises SourceUnavailable: it says what can't be followed.
    """
    parts: dict[str, dict[str, Any]] = {"client": {}, "consumer": {}, "producer": {}, "own": {}}
    without_effect: list[str] = []
    for key, value in extra.items():
        if (instead := REFUSED.get(key)) is not None:
            raise SourceUnavailable(f"{where}: {key} can't be followed: {instead}.")
        row = TABLE.get(key)
        if row is None:
            if key not in OURS and key not in TLS_KEYS and key not in TOKEN_KEYS:
                without_effect.append(key)
            continue
        try:
            parts[row.part][row.argument] = row.convert(value)
        except ValueError as expected:
            raise SourceUnavailable(f"{where}: {key}={_shown(key, value)}: expected {expected}.") from None
    if "bootstrap_servers" not in parts["client"]:
        raise SourceUnavailable(f"{where}: bootstrap.servers is missing from the connection's extra.")
    group_id = group_id or parts["own"].get("group_id")
    if not group_id:
        raise SourceUnavailable(f"{where}: no consumer group. Set group_id, or group.id in the connection's extra.")
    client = {**DEFAULTS["client"], **parts["client"], **_security(extra, parts["client"], where)}
    consumer = {**DEFAULTS["consumer"], **parts["consumer"]}
    consumer["heartbeat_interval_ms"] = min(consumer["heartbeat_interval_ms"], consumer["session_timeout_ms"] // 3)
    # aiokafka gives a join up after its request timeout, and begins anew.
    consumer["rebalance_timeout_ms"] = min(consumer["rebalance_timeout_ms"], client["request_timeout_ms"] * 3 // 4)
    return KafkaSettings(
        client=client,
        consumer=consumer,
        producer={**DEFAULTS["producer"], **parts["producer"]},
        group_id=group_id,
        # librdkafka's default is the end.
        auto_offset_reset=auto_offset_reset or parts["own"].get("auto_offset_reset", "latest"),
        without_effect=tuple(without_effect),
    )


def _security(extra: Mapping[str, Any], client: Mapping[str, Any], where: str) -> dict[str, Any]:
    protocol = client.get("security_protocol", "PLAINTEXT")
    made: dict[str, Any] = {}
    if protocol.endswith("SSL"):
        made["ssl_context"] = tls_context(extra, where)
    elif used := sorted(TLS_KEYS & extra.keys()):
        raise SourceUnavailable(f"{where}: {used[0]} has no meaning with security.protocol={protocol.lower()}.")
    if not protocol.startswith("SASL"):
        if "sasl_mechanism" in client:
            raise SourceUnavailable(f"{where}: sasl.* has no meaning with security.protocol={protocol.lower()}.")
        return made
    mechanism = str(client.get("sasl_mechanism", "")).upper()
    made["sasl_mechanism"] = mechanism
    if mechanism == "OAUTHBEARER":
        made["sasl_oauth_token_provider"] = token_provider(extra, client["bootstrap_servers"], where)
    elif mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
        for key, argument in (("sasl.username", "sasl_plain_username"), ("sasl.password", "sasl_plain_password")):
            if argument not in client:
                raise SourceUnavailable(f"{where}: {key} is missing, which {mechanism} needs.")
    elif mechanism == "GSSAPI":
        if importlib.util.find_spec("gssapi") is None:
            raise SourceUnavailable(f"{where}: sasl.mechanism=GSSAPI needs the package gssapi: pip install gssapi.")
    else:
        known = "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or GSSAPI"
        raise SourceUnavailable(f"{where}: sasl.mechanism={mechanism or None!r}: expected {known}.")
    return made


def _shown(key: str, value: Any) -> str:
    return "..." if "password" in key or "secret" in key else repr(value)

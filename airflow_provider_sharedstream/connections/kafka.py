"""From a ``kafka`` connection to a client's arguments.

The connection is the official provider's: its extra holds the configuration of librdkafka. :data:`TABLE` says what
becomes of each key in aiokafka; a key that means nothing here is named in a warning, and one that changes who may do
what, or what is read, and can't be followed is an error.

==================  =============================================
``kafka_tls``       ``ssl.*`` to an SSL context
``kafka_tokens``    tokens for ``OAUTHBEARER``
==================  =============================================
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from airflow_provider_sharedstream.connections.kafka_tls import TLS_KEYS, tls_context
from airflow_provider_sharedstream.connections.kafka_tokens import TOKEN_KEYS, token_provider
from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

DEFAULT_CONN_ID = "kafka_default"

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


def text(value: Any) -> str:
    """Return a text that isn't empty."""
    if not isinstance(value, (str, int)) or isinstance(value, bool) or not str(value).strip():
        raise ValueError("a text that isn't empty")
    return str(value).strip()


def whole(value: Any) -> int:
    """Return a whole number; JSON or a form may have made a text of it."""
    if isinstance(value, bool):
        raise ValueError("a whole number")
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ValueError("a whole number") from None


def flag(value: Any) -> bool:
    """Return what librdkafka understands."""
    known = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}
    if (said := known.get(str(value).strip().lower())) is None:
        raise ValueError("true or false")
    return said


def one_of(**meanings: Any) -> Callable[[Any], Any]:
    """Return a conversion of a word, written small or large, to what it means."""

    def convert(value: Any) -> Any:
        word = str(value).strip().lower().replace("-", "_")
        if word not in meanings:
            raise ValueError("one of " + ", ".join(meanings))
        return meanings[word]

    return convert


def idle(value: Any) -> int | None:
    """Return the milliseconds after which an idle connection is closed; librdkafka's 0 means never."""
    return whole(value) or None


def assignor(value: Any) -> str:
    """Return the first strategy that both clients know.

    aiokafka joins a group once for each that it is given, so it gets one. ``cooperative-sticky`` it doesn't have: a
    group whose other members insist on that refuses the join, which is an error then and not a wrong assignment.
    """
    names = [name.strip() for name in str(value).split(",")]
    return next((name for name in names if name in ("range", "roundrobin")), "range")


class Row(NamedTuple):
    """What becomes of a key.

    :param part: which client gets it.
    :param argument: the name of aiokafka's argument.
    :param convert: raises ValueError with what is expected.
    """

    part: Literal["client", "consumer", "producer", "own"]
    argument: str
    convert: Callable[[Any], Any]


TABLE: Mapping[str, Row] = {
    "bootstrap.servers": Row("client", "bootstrap_servers", text),
    "metadata.broker.list": Row("client", "bootstrap_servers", text),
    "client.id": Row("client", "client_id", text),
    "metadata.max.age.ms": Row("client", "metadata_max_age_ms", whole),
    "topic.metadata.refresh.interval.ms": Row("client", "metadata_max_age_ms", whole),
    "socket.timeout.ms": Row("client", "request_timeout_ms", whole),
    "retry.backoff.ms": Row("client", "retry_backoff_ms", whole),
    "connections.max.idle.ms": Row("client", "connections_max_idle_ms", idle),
    "security.protocol": Row(
        "client",
        "security_protocol",
        one_of(plaintext="PLAINTEXT", ssl="SSL", sasl_plaintext="SASL_PLAINTEXT", sasl_ssl="SASL_SSL"),
    ),
    "sasl.mechanism": Row("client", "sasl_mechanism", text),
    "sasl.mechanisms": Row("client", "sasl_mechanism", text),
    "sasl.username": Row("client", "sasl_plain_username", text),
    "sasl.password": Row("client", "sasl_plain_password", text),
    "sasl.kerberos.service.name": Row("client", "sasl_kerberos_service_name", text),
    "group.id": Row("own", "group_id", text),
    "auto.offset.reset": Row(
        "own",
        "auto_offset_reset",
        one_of(
            smallest="earliest",
            earliest="earliest",
            beginning="earliest",
            largest="latest",
            latest="latest",
            end="latest",
            error="none",
            none="none",
        ),
    ),
    "group.instance.id": Row("consumer", "group_instance_id", text),
    "partition.assignment.strategy": Row("consumer", "partition_assignment_strategy", assignor),
    "session.timeout.ms": Row("consumer", "session_timeout_ms", whole),
    "heartbeat.interval.ms": Row("consumer", "heartbeat_interval_ms", whole),
    # How long the group waits for a member in a rebalance; the time between two polls isn't limited here.
    "max.poll.interval.ms": Row("consumer", "rebalance_timeout_ms", whole),
    "fetch.wait.max.ms": Row("consumer", "fetch_max_wait_ms", whole),
    "fetch.min.bytes": Row("consumer", "fetch_min_bytes", whole),
    "fetch.max.bytes": Row("consumer", "fetch_max_bytes", whole),
    "max.partition.fetch.bytes": Row("consumer", "max_partition_fetch_bytes", whole),
    "fetch.message.max.bytes": Row("consumer", "max_partition_fetch_bytes", whole),
    "check.crcs": Row("consumer", "check_crcs", flag),
    "client.rack": Row("consumer", "client_rack", text),
    "isolation.level": Row(
        "consumer",
        "isolation_level",
        one_of(read_committed="read_committed", read_uncommitted="read_uncommitted"),
    ),
    "message.max.bytes": Row("producer", "max_request_size", whole),
    "compression.type": Row(
        "producer", "compression_type", one_of(none=None, gzip="gzip", snappy="snappy", lz4="lz4", zstd="zstd")
    ),
    "compression.codec": Row(
        "producer", "compression_type", one_of(none=None, gzip="gzip", snappy="snappy", lz4="lz4", zstd="zstd")
    ),
}
"""librdkafka's keys and aiokafka's arguments."""

OURS = frozenset(
    {
        "enable.auto.commit",
        "auto.commit.enable",
        "auto.commit.interval.ms",
        "enable.auto.offset.store",
        "acks",
        "request.required.acks",
    }
)
"""Keys about what this package decides by itself: commits follow what is stored, and a dead letter is written to all
replicas. They are passed over without a word.
"""

REFUSED: Mapping[str, str] = {
    "ssl.keystore.location": "give the certificate and key as PEM, with ssl.certificate.location and ssl.key.location",
    "ssl.keystore.password": "give the certificate and key as PEM, with ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "keys in an OpenSSL engine can't be used",
    "ssl.engine.id": "keys in an OpenSSL engine can't be used",
    "ssl.providers": "OpenSSL's own configuration decides about its providers",
    "ssl.curves.list": "OpenSSL's own configuration decides about curves",
    "ssl.sigalgs.list": "OpenSSL's own configuration decides about signature algorithms",
    "sasl.kerberos.keytab": "get the ticket outside, with kinit, into the triggerer's credential cache",
    "sasl.kerberos.principal": "get the ticket outside, with kinit, into the triggerer's credential cache",
    "sasl.kerberos.kinit.cmd": "get the ticket outside, with kinit, into the triggerer's credential cache",
    "enable.sasl.oauthbearer.unsecure.jwt": "name a function that returns a token, with oauth_cb",
}
"""Keys that change who may do what and have no counterpart; what to do instead."""

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "client": {
        "client_id": "airflow-sharedstream",
        # How soon a new topic or partition is seen. aiokafka's default is five minutes.
        "metadata_max_age_ms": 30_000,
    },
    "consumer": {
        # librdkafka's: a triggerer's event loop may be busy with others for seconds.
        "session_timeout_ms": 45_000,
        "rebalance_timeout_ms": 30_000,
        "heartbeat_interval_ms": 3_000,
        "partition_assignment_strategy": "range",
        "isolation_level": "read_committed",
        # A seek waits for the fetch that runs.
        "fetch_max_wait_ms": 100,
    },
    # Above what topics usually allow, so that the broker decides and not the client.
    "producer": {"max_request_size": 16 * 1024 * 1024},
}
"""What holds where the connection says nothing: librdkafka's default where it changes what is read."""


async def kafka_settings(
    kafka_config_id: str, *, group_id: str | None = None, auto_offset_reset: OffsetReset | None = None
) -> KafkaSettings:
    """Look the connection up and translate it.

    :param kafka_config_id: the Airflow connection.
    :param group_id: goes before the connection's ``group.id``.
    :param auto_offset_reset: goes before the connection's ``auto.offset.reset``.
    :raises SourceUnavailable: it is missing, or says what can't be followed.
    """
    connection = await connection_of("kafka_config_id", kafka_config_id)
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

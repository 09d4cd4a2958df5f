"""librdkafka's keys, and what becomes of each in aiokafka."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


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
    "ssl.ca.certificate.stores": "name the authority's certificates, with ssl.ca.location",
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
        "request_timeout_ms": 40_000,
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

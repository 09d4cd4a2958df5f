"""Every way in, and what is said where there is none."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from services.kafka import KafkaServer
from services.kafka_certificates import Certificates
from services.process import free_port
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import Kafka
from tests.kafka.ways import CONN_ID, Issuer, connect, refusal, sasl, way_in, without

WAYS = ["plain text", "tls", "inline tls", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "function", "async", "oidc"]


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_in(server: KafkaServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """To read, to commit, and to write dead letters."""
    topic = await Kafka(server).topic(2)
    await topic.send_json([{"n": n} for n in range(10)])
    with Issuer() as issuer:
        connect(monkeypatch, way_in(server, way, issuer.url))
        consumer = topic.consumer(kafka_config_id=CONN_ID)
        await consumer.connect()
        found: list[Any] = []
        while len(found) < 10:
            found += await consumer.receive(100)
        assert not await consumer.store_dead_letters(found[:3])
        assert not await consumer.settle(Disposition.ACCEPT, found)
        await consumer.close()
        if way == "oidc":
            assert issuer.asked
            assert issuer.asked[0]["grant_type"] == "client_credentials"
            assert issuer.asked[0]["scope"] == "kafka"
    assert await topic.pending() == 0
    assert len(await topic.dead_letters()) == 3


WRONG: dict[str, tuple[Any, str]] = {
    "a wrong password": (
        lambda server: way_in(server, "PLAIN") | {"sasl.password": "wr0ng"},
        "the brokers refuse the connection's credentials: .*Invalid username or password",
    ),
    "a wrong SCRAM password": (
        lambda server: way_in(server, "SCRAM-SHA-512") | {"sasl.password": "wr0ng"},
        "the brokers refuse the connection's credentials: ",
    ),
    "an expired token": (
        lambda server: way_in(server, "async") | {"oauth_cb": "tests.kafka.tokens.expired"},
        "the brokers refuse the connection's credentials: .*invalid_token",
    ),
    "a function that isn't allowed": (
        lambda server: way_in(server, "async") | {"oauth_cb": "os.getcwd"},
        r"oauth_cb='os.getcwd' is not allowed. Put it into \[apache_kafka\] callback_allowlist",
    ),
    "a function that isn't there": (
        lambda server: way_in(server, "async") | {"oauth_cb": "tests.kafka.tokens.no_such"},
        "oauth_cb='tests.kafka.tokens.no_such' can't be imported",
    ),
    "no way to get a token": (
        lambda server: without(way_in(server, "async"), "oauth_cb"),
        "OAUTHBEARER needs a token: set sasl.oauthbearer.method=oidc, or oauth_cb",
    ),
    "a mechanism that the brokers don't have": (
        lambda server: way_in(server, "PLAIN") | {"sasl.mechanism": "SCRAM-SHA-1"},
        "sasl.mechanism='SCRAM-SHA-1': expected PLAIN",
    ),
    "no mechanism": (lambda server: without(way_in(server, "PLAIN"), "sasl.mechanism"), "sasl.mechanism=None"),
    "no password": (lambda server: without(way_in(server, "PLAIN"), "sasl.password"), "sasl.password is missing"),
    "Kerberos without its library": (lambda server: sasl(server, sasl_mechanism="GSSAPI"), "pip install gssapi"),
    "another authority": (
        lambda server: (
            way_in(server, "PLAIN") | {"ssl.ca.location": str(Certificates(server.folder / "others").ca_file)}
        ),
        "TLS fails: .*CERTIFICATE_VERIFY_FAILED",
    ),
    "no client's certificate": (
        lambda server: without(way_in(server, "tls"), "ssl.certificate.location", "ssl.key.location"),
        "TLS fails: ",
    ),
    "a file that isn't there": (
        lambda server: way_in(server, "tls") | {"ssl.ca.location": "/no/such/file.pem"},
        "ssl.ca.location='/no/such/file.pem' can't be used: .*No such file",
    ),
    "a wrong password of the key": (
        lambda server: way_in(server, "inline tls") | {"ssl.key.password": "no"},
        "the client's certificate and key can't be used",
    ),
    "no password of the key": (
        lambda server: without(way_in(server, "inline tls"), "ssl.key.password"),
        "the client's certificate and key can't be used",
    ),
    "a key of another certificate": (
        lambda server: way_in(server, "tls") | {"ssl.key.location": str(server.issue("bob").key_file)},
        "the client's certificate and key can't be used",
    ),
    "a keystore": (
        lambda server: way_in(server, "tls") | {"ssl.keystore.location": "/etc/k.p12"},
        "ssl.keystore.location can't be followed: give the certificate and key as PEM",
    ),
    "TLS keys without TLS": (
        lambda server: way_in(server, "plain text") | {"ssl.ca.location": str(server.ca_file)},
        "ssl.ca.location has no meaning with security.protocol=plaintext",
    ),
    "a mechanism without SASL": (
        lambda server: way_in(server, "plain text") | {"sasl.mechanism": "PLAIN"},
        "has no meaning with security.protocol=plaintext",
    ),
    "no addresses": (lambda server: {}, "bootstrap.servers is missing from the connection's extra"),
    "an address that can't be one": (
        lambda server: {"bootstrap.servers": "broker:port"},
        "bootstrap.servers='broker:port' can't be understood",
    ),
    "a session that is too short": (
        lambda server: way_in(server, "plain text") | {"session.timeout.ms": "100"},
        "the brokers refuse the connection's session.timeout.ms",
    ),
    "a number that is none": (
        lambda server: way_in(server, "plain text") | {"session.timeout.ms": "soon"},
        "session.timeout.ms='soon': expected a whole number",
    ),
}


@pytest.mark.parametrize("what", WRONG)
async def test_what_somebody_has_to_change_is_said(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    topic = await Kafka(server).topic(1)
    extra, text = WRONG[what]
    error = await refusal(topic, monkeypatch, extra(server))
    assert isinstance(error, SourceUnavailable), repr(error)
    assert str(error).startswith(f"kafka_config_id='{CONN_ID}': ") or "group_id=" in str(error) or "boot" in str(error)
    assert re.search(text, str(error)), str(error)
    assert "wr0ng" not in caplog.text + str(error)


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("127.0.0.1:{port}", r"no broker can be reached \(127.0.0.1:{port}: .*[Cc]onnect"),
        ("no-such-host.invalid:9092", r"no broker can be reached \(no-such-host.invalid:9092: gaierror"),
    ],
)
async def test_brokers_that_are_not_there_are_waited_for(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, address: str, text: str
) -> None:
    topic = await Kafka(server).topic(1)
    port = free_port()
    error = await refusal(topic, monkeypatch, {"bootstrap.servers": address.format(port=port)})
    assert KafkaConsumer(["t"]).is_transient(error), repr(error)
    assert re.search(text.format(port=port), str(error)), str(error)


@pytest.mark.parametrize("way", ["TLS at a plain port", "plain text at a TLS port"])
async def test_the_wrong_port(server: KafkaServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    topic = await Kafka(server).topic(1)
    if way == "TLS at a plain port":
        extra = way_in(server, "tls") | {"bootstrap.servers": server.bootstrap}
    else:
        extra = {"bootstrap.servers": server.ssl_bootstrap}
    error = await refusal(topic, monkeypatch, extra)
    # A broker that is being started looks the same.
    assert KafkaConsumer(["t"]).is_transient(error), repr(error)
    assert re.search(r"127.0.0.1:\d+: it hangs up; does security.protocol fit this port\?", str(error)), str(error)


async def test_a_group_or_a_topic_that_may_not_be_used(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await Kafka(server).topic(1)
    await asyncio.to_thread(server.permit, "bob", group=topic.group)
    error = await refusal(topic, monkeypatch, way_in(server, "PLAIN"))
    assert isinstance(error, SourceUnavailable)
    assert f"group_id='{topic.group}': the connection's user may not use the group. It needs READ" in str(error)
    await asyncio.to_thread(server.permit, "alice", group=topic.group)
    await asyncio.to_thread(server.permit, "bob", topic=topic.name)
    error = await refusal(topic, monkeypatch, way_in(server, "PLAIN"))
    assert isinstance(error, SourceUnavailable)
    assert f"topics=['{topic.name}']: there is no such topic, or the connection's user may not see it" in str(error)
    await asyncio.to_thread(server.permit, "alice", topic=topic.name)
    connect(monkeypatch, way_in(server, "PLAIN"))
    consumer = topic.consumer(kafka_config_id=CONN_ID)
    await consumer.connect()
    await consumer.close()


async def test_a_missing_connection_or_group(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = KafkaConsumer(["t"], kafka_config_id="no_such_connection")
    with pytest.raises(SourceUnavailable, match="kafka_config_id='no_such_connection': there is no such connection"):
        await consumer.connect()
    connect(monkeypatch, {"bootstrap.servers": server.bootstrap})
    consumer = KafkaConsumer(["t"], kafka_config_id=CONN_ID)
    with pytest.raises(SourceUnavailable, match="no consumer group. Set group_id, or group.id in the connection"):
        await consumer.connect()


async def test_in_the_triggerer_it_is_one_line_and_a_slow_retry(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await Kafka(server).topic(1)
    connect(monkeypatch, way_in(server, "PLAIN") | {"sasl.password": "wr0ng", "linger.ms": 5, "no.such.key": "x"})
    async with triggerer() as running:
        watcher = running.start(topic.trigger(kafka_config_id=CONN_ID))
        await until(lambda: "next try in" in caplog.text, "what is wrong")
        await asyncio.sleep(10)
        ours = [r for r in caplog.records if r.name.startswith("airflow_provider_sharedstream")]
        errors = [record.getMessage() for record in ours if record.levelno >= logging.ERROR]
        assert len(errors) == 1, errors
        assert "can't be used, next try in" in errors[0]
        assert "Invalid username or password" in errors[0]
        unknown = [record.getMessage() for record in ours if "without effect here" in record.getMessage()]
        assert unknown == [f"kafka_config_id='{CONN_ID}': keys without effect here: linger.ms, no.such.key"]
        assert "wr0ng" not in caplog.text
        assert watcher.failure is None
        assert not watcher.restarts

"""Every way in, and what is said where there is none."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
import re
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from airflow_provider_sharedstream.connections.kafka_tokens import google_token, token_provider
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from services.kafka import USERS, KafkaServer, unsecured_token
from services.kafka_certificates import Certificates
from services.process import free_port
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import QUICK, Kafka, Topic

CONN_ID = "kafka_secure"
WAYS = ["plain text", "tls", "inline tls", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "function", "async", "oidc"]


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    # A connection is closed when its token has run out, or after five seconds.
    settings = {"connections.max.reauth.ms": "5000"}
    with KafkaServer(tmp_path_factory.mktemp("kafka-secure"), secure=True, settings=settings) as server:
        yield server


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ", ".join(
        f"tests.kafka.tokens.{name}" for name in ("for_alice", "for_alice_async", "broken", "expired", "no_such")
    )
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", names)


def connect(monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any]) -> None:
    monkeypatch.setenv(
        f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps({"conn_type": "kafka", "extra": {**QUICK, **extra}})
    )


@contextlib.contextmanager
def issuer(valid_seconds: int = 3600) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An endpoint that gives tokens to the client `me` with the secret `s3cret`."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["content-length"])).decode()
            asked.append({**dict(urllib.parse.parse_qsl(form)), "authorization": self.headers["authorization"]})
            right = self.headers["authorization"] == "Basic bWU6czNjcmV0"
            token = {"access_token": unsecured_token("alice", valid_seconds=valid_seconds), "expires_in": valid_seconds}
            answer = token if right else {"error": "who?"}
            body = json.dumps(answer).encode()
            self.send_response(200 if right else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/token", asked
        finally:
            server.shutdown()
            thread.join()


def sasl(server: KafkaServer, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.secure_bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(server.ca_file),
        **{key.replace("_", "."): value for key, value in more.items()},
    }


def way_in(server: KafkaServer, way: str, token_url: str = "") -> dict[str, Any]:
    if way == "plain text":
        return {"bootstrap.servers": server.bootstrap}
    tls = {"bootstrap.servers": server.ssl_bootstrap, "security.protocol": "ssl"}
    if way == "tls":
        issued = server.issue("alice")
        return tls | {
            "ssl.ca.location": str(server.ca_file),
            "ssl.certificate.location": str(issued.certificate_file),
            "ssl.key.location": str(issued.key_file),
        }
    if way == "inline tls":
        issued = server.issue("alice", password="k3y")
        return tls | {
            "ssl.ca.pem": server.ca_file.read_text(),
            "ssl.certificate.pem": issued.certificate_file.read_text(),
            "ssl.key.pem": issued.key_file.read_text(),
            "ssl.key.password": "k3y",
        }
    if way == "function":
        return sasl(server, sasl_mechanism="OAUTHBEARER") | {
            "oauth_cb": "tests.kafka.tokens.for_alice",
            "sasl.oauthbearer.config": "the config",
        }
    if way == "async":
        return sasl(server, sasl_mechanisms="OAUTHBEARER") | {"oauth_cb": "tests.kafka.tokens.for_alice_async"}
    if way == "oidc":
        return sasl(server, sasl_mechanism="OAUTHBEARER") | {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": token_url,
        }
    return sasl(server, sasl_mechanism=way, sasl_username="alice", sasl_password=USERS["alice"])


@pytest.mark.parametrize("way", WAYS)
async def test_every_way_in(server: KafkaServer, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """To read, to commit, and to write dead letters."""
    topic = await Kafka(server).topic(2)
    await topic.send_json([{"n": n} for n in range(10)])
    with issuer() as (url, asked):
        connect(monkeypatch, way_in(server, way, url))
        consumer = topic.consumer(kafka_config_id=CONN_ID)
        await consumer.connect()
        found: list[Any] = []
        while len(found) < 10:
            found += await consumer.receive(100)
        assert not await consumer.store_dead_letters(found[:3])
        assert not await consumer.settle(Disposition.ACCEPT, found)
        await consumer.close()
        if way == "oidc":
            assert asked
            assert asked[0]["grant_type"] == "client_credentials"
            assert asked[0]["scope"] == "kafka"
    assert await topic.pending() == 0
    assert len(await topic.dead_letters()) == 3


def _without(given: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in given.items() if key not in keys}


async def refusal(topic: Topic, monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any]) -> Exception:
    """What connecting, or the first receive, says."""
    connect(monkeypatch, extra)
    consumer = topic.consumer(kafka_config_id=CONN_ID)
    try:
        await consumer.connect()
        await consumer.receive(1)
        await consumer.receive(1)
    except Exception as error:
        return error
    finally:
        await consumer.close()
    raise AssertionError("it was let in")


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
        lambda server: _without(way_in(server, "async"), "oauth_cb"),
        "OAUTHBEARER needs a token: set sasl.oauthbearer.method=oidc, or oauth_cb",
    ),
    "a mechanism that the brokers don't have": (
        lambda server: way_in(server, "PLAIN") | {"sasl.mechanism": "SCRAM-SHA-1"},
        "sasl.mechanism='SCRAM-SHA-1': expected PLAIN",
    ),
    "no mechanism": (lambda server: _without(way_in(server, "PLAIN"), "sasl.mechanism"), "sasl.mechanism=None"),
    "no password": (lambda server: _without(way_in(server, "PLAIN"), "sasl.password"), "sasl.password is missing"),
    "Kerberos without its library": (lambda server: sasl(server, sasl_mechanism="GSSAPI"), "pip install gssapi"),
    "another authority": (
        lambda server: (
            way_in(server, "PLAIN") | {"ssl.ca.location": str(Certificates(server.folder / "others").ca_file)}
        ),
        "TLS fails: .*CERTIFICATE_VERIFY_FAILED",
    ),
    "no client's certificate": (
        lambda server: _without(way_in(server, "tls"), "ssl.certificate.location", "ssl.key.location"),
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
        lambda server: _without(way_in(server, "inline tls"), "ssl.key.password"),
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


async def test_a_token_is_asked_for_again_before_it_runs_out() -> None:
    with issuer() as (url, asked):
        given = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.token.endpoint.url": url,
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2",
        }
        provider = token_provider(given, "b:9092", "here")
        tokens = await asyncio.gather(*(provider.token() for _ in range(10)))
        assert len(set(tokens)) == 1
        assert len(asked) == 1
        assert provider.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
        provider._token = provider._token._replace(expires_at=provider._token.expires_at - 3600)
        await provider.token()
        assert len(asked) == 2
        wrong = token_provider(given | {"sasl.oauthbearer.client.secret": "x"}, "b:9092", "here")
        with pytest.raises(SourceUnavailable, match="refuses a token for client 'me'"):
            await wrong.token()


async def test_reading_goes_on_when_tokens_run_out(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers close a connection whose token has run out."""
    topic = await Kafka(server).topic(2)
    with issuer(valid_seconds=3) as (url, asked):
        connect(monkeypatch, way_in(server, "oidc", url))
        async with triggerer() as running:
            watcher = running.start(topic.trigger(kafka_config_id=CONN_ID))
            sent = 0
            while len(asked) < 12:
                await topic.send_json([{"n": sent}])
                sent += 1
                await until(lambda sent=sent: len(watcher.ids) == sent, "the next record")
                assert sent < 300, "no connection is made anew"
                await asyncio.sleep(0.2)
            assert not watcher.restarts
        assert await topic.pending() == 0
    assert [body["n"] for body in watcher.bodies] == list(range(sent))
    errors = [r.getMessage() for r in caplog.records if r.name.startswith("airflow_provider_sharedstream")]
    assert not [text for text in errors if "next try in" in text], "the stream had to begin anew"


async def test_what_gives_no_token_is_said(server: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await Kafka(server).topic(1)
    error = await refusal(topic, monkeypatch, way_in(server, "async") | {"oauth_cb": "tests.kafka.tokens.broken"})
    assert KafkaConsumer(["t"]).is_transient(error)
    assert "no token can be had: ZeroDivisionError: no token today" in str(error)
    with issuer() as (url, _):
        extra = way_in(server, "oidc", url) | {"sasl.oauthbearer.client.secret": "wr0ng"}
        error = await refusal(topic, monkeypatch, extra)
        assert isinstance(error, SourceUnavailable)
        assert f"{url} refuses a token for client 'me'" in str(error)
        assert not KafkaConsumer(["t"]).is_transient(error)
        # When it is refused later, aiokafka goes on, and so does what it has to tell.
        connect(monkeypatch, way_in(server, "oidc", url))
        consumer = topic.consumer(kafka_config_id=CONN_ID)
        await consumer.connect()
        assert consumer._session is not None
        client = consumer._session._consumer._client
        provider = client._sasl_oauth_token_provider
        provider._token = None
        monkeypatch.setattr(type(provider), "token", token_provider(extra, "b:9092", "here").token)
        for connection in list(client._conns.values()):
            connection.close()
        await asyncio.sleep(2)
        assert not client._sync_task.done()
        monkeypatch.undo()
        connect(monkeypatch, way_in(server, "oidc", url))
        await topic.send_json([{"n": 1}])
        await until(lambda: _one(consumer), "a record, with the right token")
        await consumer.close()


async def _one(consumer: KafkaConsumer) -> bool:
    return len(await consumer.receive(1)) == 1


def test_a_token_for_google_says_whose_it_is() -> None:
    expiry = datetime(2030, 1, 2, 1)
    credentials = SimpleNamespace(token="ya29.x", expiry=expiry, service_account_email="me@project.iam")
    token = google_token(credentials)
    parts = [base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)) for part in token.text.split(".")]
    assert json.loads(parts[0]) == {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = json.loads(parts[1])
    assert (claims["sub"], claims["scope"], claims["iss"]) == ("me@project.iam", "kafka", "Google")
    assert claims["exp"] == token.expires_at == datetime(2030, 1, 2, 1, tzinfo=timezone.utc).timestamp()
    assert parts[2] == b"ya29.x"


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ("b-1.demo.abcde1.c2.kafka.us-east-1.amazonaws.com:9098", r"\[kafka-msk\]"),
        ("boot-abcde1.c2.kafka-serverless.eu-west-1.amazonaws.com:9098", r"\[kafka-msk\]"),
    ],
)
def test_amazon_msk_is_told_by_its_address(hosts: str, text: str) -> None:
    with pytest.raises(SourceUnavailable, match=text):
        token_provider({}, hosts, "here")

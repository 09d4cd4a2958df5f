"""Tokens: asked for anew, refused, and whose they are."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaConsumer
from airflow_provider_sharedstream.connections.kafka_tokens import google_token, token_provider
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from services.kafka import KafkaServer
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import Kafka
from tests.kafka.ways import CONN_ID, Issuer, connect, refusal, way_in


async def test_a_token_is_asked_for_again_before_it_runs_out() -> None:
    with Issuer() as issuer:
        given = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s3cret",
            "sasl.oauthbearer.token.endpoint.url": issuer.url,
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, identityPoolId=pool-2",
        }
        provider = token_provider(given, "b:9092", "here")
        tokens = await asyncio.gather(*(provider.token() for _ in range(10)))
        assert len(set(tokens)) == 1
        assert len(issuer.asked) == 1
        assert provider.extensions() == {"logicalCluster": "lkc-1", "identityPoolId": "pool-2"}
        provider._token = provider._token._replace(expires_at=provider._token.expires_at - 3600)
        await provider.token()
        assert len(issuer.asked) == 2
        wrong = token_provider(given | {"sasl.oauthbearer.client.secret": "x"}, "b:9092", "here")
        with pytest.raises(SourceUnavailable, match="refuses a token for client 'me'"):
            await wrong.token()


async def test_reading_goes_on_when_tokens_run_out(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers close a connection whose token has run out."""
    topic = await Kafka(server).topic(2)
    with Issuer(valid_seconds=3) as issuer:
        connect(monkeypatch, way_in(server, "oidc", issuer.url))
        async with triggerer() as running:
            watcher = running.start(topic.trigger(kafka_config_id=CONN_ID))
            sent = 0
            while len(issuer.asked) < 12:
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
    with Issuer() as issuer:
        extra = way_in(server, "oidc", issuer.url) | {"sasl.oauthbearer.client.secret": "wr0ng"}
        error = await refusal(topic, monkeypatch, extra)
        assert isinstance(error, SourceUnavailable)
        assert f"{issuer.url} refuses a token for client 'me'" in str(error)
        assert not KafkaConsumer(["t"]).is_transient(error)
        # When it is refused later, aiokafka goes on, and so does what it has to tell.
        connect(monkeypatch, way_in(server, "oidc", issuer.url))
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
        connect(monkeypatch, way_in(server, "oidc", issuer.url))
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

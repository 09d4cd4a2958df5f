"""A cluster's ways in, an issuer of tokens, and what is said where there is no way."""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.message import Message
from typing import Any

import pytest

from services.kafka import USERS, KafkaServer, unsecured_token
from tests.kafka.conftest import QUICK, Topic
from tests.token_endpoint import TokenEndpoint

CONN_ID = "kafka_secure"
CALLBACKS = ["for_alice", "for_alice_async", "broken", "expired", "no_such"]


def connect(monkeypatch: pytest.MonkeyPatch, extra: Mapping[str, Any]) -> None:
    """Make the connection, which may name the functions in `tokens.py`."""
    connection = {"conn_type": "kafka", "extra": {**QUICK, **extra}}
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", json.dumps(connection))
    callbacks = ", ".join(f"tests.kafka.tokens.{name}" for name in CALLBACKS)
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", callbacks)


class Issuer(TokenEndpoint):
    """Gives tokens for `alice` to the client `me` with the secret `s3cret`.

    :param valid_seconds: how long each is good.
    """

    def __init__(self, valid_seconds: int = 3600) -> None:
        super().__init__()
        self.asked: list[dict[str, str]] = []
        """The fields of each request."""
        self._valid_seconds = valid_seconds

    def answer(self, path: str, headers: Message, fields: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(fields)
        if headers["Authorization"] != "Basic bWU6czNjcmV0":
            return 401, {"error": "who?"}
        token = unsecured_token("alice", valid_seconds=self._valid_seconds)
        return 200, {"access_token": token, "expires_in": self._valid_seconds}


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


def without(given: dict[str, Any], *keys: str) -> dict[str, Any]:
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

"""What somebody has to change is said in the triggerer: a line that is clear, and not said often; the rest goes on."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Iterator
from typing import Any

import pytest

from services.kafka import USERS, KafkaServer
from services.process import free_port
from tests.airflow_loop import triggerer, until
from tests.kafka.conftest import QUICK, Kafka, Topic
from tests.kafka.test_stream import emptied, numbers

pytestmark = pytest.mark.slow

WATCHED_SECONDS = 15.0


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka-bad"), secure=True) as server:
        yield server


def sasl(server: KafkaServer, password: str) -> dict[str, str]:
    return {
        "bootstrap.servers": server.secure_bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(server.ca_file),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "alice",
        "sasl.password": password,
    }


def cases(server: KafkaServer) -> dict[str, tuple[dict[str, str], str]]:
    """By the name of a topic and group: what the connection says, and what is said of it."""
    closed = f"127.0.0.1:{free_port()}"
    return {
        "no-addresses": ({}, "bootstrap.servers is missing from the connection's extra"),
        "unreachable": ({"bootstrap.servers": closed}, f"no broker can be reached ({closed}: "),
        "wrong-password": (sasl(server, "wr0ng"), "the brokers refuse the connection's credentials: "),
        "no-such-topic": ({"bootstrap.servers": server.bootstrap}, "topics=['no-such-topic']: there is no such topic"),
        "forbidden-group": (
            sasl(server, USERS["alice"]),
            "group_id='forbidden-group': the connection's user may not use the group. It needs READ",
        ),
    }


async def test_each_mistake_is_one_clear_line_and_the_healthy_stream_goes_on(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = Kafka(server)
    kafka.conn_id = "kafka_healthy"
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_HEALTHY", server.connection(QUICK))
    healthy = await kafka.topic(1)
    await kafka.topic(1, name="forbidden-group", dead_letters=False)
    await asyncio.to_thread(server.permit, "bob", group="forbidden-group")
    found = cases(server)
    caplog.set_level(logging.WARNING)
    async with triggerer() as running:
        watcher = running.start(healthy.trigger())
        bad = []
        for name, (extra, _) in found.items():
            conn_id = "kafka_" + name.replace("-", "_")
            monkeypatch.setenv(
                f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps({"conn_type": "kafka", "extra": {**QUICK, **extra}})
            )
            bad.append(running.start(Topic(server, conn_id, name, 1, None).trigger(group_id=name)))

        def lines(name: str) -> list[str]:
            ours = (r.getMessage() for r in caplog.records if r.name.startswith("airflow_provider_sharedstream"))
            return [text for text in ours if "next try in" in text and f"kafka {name} " in text]

        for name in found:
            await until(lambda name=name: lines(name), f"a line on {name}")
        for n in range(int(WATCHED_SECONDS)):
            await healthy.send_json([{"n": n}])
            await asyncio.sleep(1)
        for name, (_, text) in found.items():
            said = lines(name)
            assert all(text in one for one in said), said
            # What may pass by itself is tried sooner, with growing delays; else the next try is after 15 s or more.
            assert len(said) <= (12 if name == "unreachable" else 2), said
        await until(emptied(healthy), "everything of the healthy stream committed")
        assert numbers(watcher) == list(range(int(WATCHED_SECONDS)))
        for one in [watcher, *bad]:
            assert one.failure is None
            assert not one.restarts
    assert "wr0ng" not in caplog.text
    assert "Traceback" not in caplog.text


async def test_what_was_wrong_is_put_right_without_a_restart(
    server: KafkaServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection is looked up at each try."""
    kafka = Kafka(server)
    kafka.conn_id = "kafka_later"
    extra: dict[str, Any] = {**QUICK, "bootstrap.servers": f"127.0.0.1:{free_port()}"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_LATER", json.dumps({"conn_type": "kafka", "extra": extra}))
    topic = await kafka.topic(1)
    await topic.send_json([{"n": 1}])
    async with triggerer() as running:
        watcher = running.start(topic.trigger())
        await until(lambda: "no broker can be reached" in caplog.text, "what is wrong")
        os.environ["AIRFLOW_CONN_KAFKA_LATER"] = server.connection(QUICK)
        await until(lambda: numbers(watcher) == [1], "the record")
        assert not watcher.restarts

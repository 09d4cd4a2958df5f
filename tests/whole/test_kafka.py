"""Whole Airflow processes with a real Kafka broker: stored before committed, through a kill -9; and the example."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.example_dags import example_kafka
from services.airflow import Airflow
from services.kafka import KafkaServer
from tests.kafka.conftest import records_of
from tests.whole.common import (
    assert_each_has_its_own,
    assert_nothing_lost,
    bodies_by_asset,
    dag_folder,
    numbered,
    shares,
    successful,
)

TOPIC = "whole"
GROUP = "whole"
(EXAMPLE,) = example_kafka.STREAM["topics"]
SESSION = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500"}


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def create(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic(TOPIC, 3)
        await admin.create_topic(EXAMPLE, 3)
        await admin.create_topic(f"{TOPIC}-rejected")
        await admin.create_topic(example_kafka.STREAM["dead_letter_topic"])


async def send(server: KafkaServer, bodies: Iterable[str]) -> None:
    async with server.admin() as admin:
        await admin.send(TOPIC, [body.encode() for body in bodies])


async def send_example(server: KafkaServer, body: object, source: str) -> None:
    async with server.admin() as admin:
        await admin.send(EXAMPLE, [json.dumps(body).encode()], headers=[("source", source.encode())], partition=0)


async def uncommitted(server: KafkaServer, topic: str = TOPIC, group: str = GROUP) -> int:
    async with server.admin() as admin:
        committed = await admin.committed(group)
        return sum(end - committed.get(lane, 0) for lane, end in (await admin.ends(topic)).items())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_before_committed(tmp_path: Path) -> None:
    with KafkaServer(tmp_path / "kafka") as server:
        run(create(server))
        with Airflow(
            tmp_path / "airflow",
            dag_folder(tmp_path / "dags", "dags_kafka/whole_kafka.py", example_kafka),
            connections={"kafka_default": server.connection(SESSION)},
            env={"TEST_TOPIC": TOPIC},
        ) as airflow:
            _everybody_gets_its_own(airflow, server)
            _examples_run(airflow, server)
            _kill_between_storing_and_committing(airflow, server)


def _everybody_gets_its_own(airflow: Airflow, server: KafkaServer) -> None:
    sent = numbered(range(200))
    run(send(server, sent))
    airflow.wait_for("everything committed", lambda: run(uncommitted(server)) == 0)
    assert_each_has_its_own(airflow, sent)
    airflow.wait_for("a successful run of each Dag", lambda: successful(airflow) >= set(shares(sent)))
    done = next(found for found in airflow.client.dag_runs("whole_all") if found["state"] == "success")
    returned = airflow.client.xcom("whole_all", done["dag_run_id"], "ids")
    assert returned
    assert len(set(returned)) == len(returned)


def _examples_run(airflow: Airflow, server: KafkaServer) -> None:
    order = {"kind": "order", "region": "eu", "total": 12.5}
    nonsense = {"kind": "order", "region": "us", "total": "twelve"}
    refund = {"kind": "refund", "region": "us", "total": 3}
    for body, source in ((order, "shop"), (nonsense, "fax"), (refund, "app")):
        run(send_example(server, body, source))
    expected = {
        "example_kafka_europe": [order],
        "example_kafka_by_header": [order, refund],
        "example_kafka_checked_orders": [{**order, "place": f"{EXAMPLE}[0]@0"}],
    }
    airflow.wait_for("a successful run of each example", lambda: successful(airflow) >= set(expected))
    group, dead_letter_topic = (example_kafka.STREAM[name] for name in ("group_id", "dead_letter_topic"))
    airflow.wait_for("everything of them committed", lambda: run(uncommitted(server, EXAMPLE, group)) == 0)
    found = bodies_by_asset(airflow)
    for asset, bodies in expected.items():
        assert sorted(found[asset]) == sorted(map(json.dumps, bodies)), asset
    (letter,) = run(records_of(server, dead_letter_topic))
    assert letter.value == json.dumps(nonsense).encode()
    assert b"the total of an order is a number" in dict(letter.headers)["x-sharedstream-reason"]


def _kill_between_storing_and_committing(airflow: Airflow, server: KafkaServer) -> None:
    before = len(airflow.asset_events())
    sent = numbered(range(1000, 1100))
    run(send(server, sent))
    # The broker dies as soon as something is stored: what is decided can't be committed any more.
    airflow.wait_for("a stored event", lambda: len(airflow.asset_events()) > before)
    server.kill()
    airflow.kill(airflow.triggerers[0])
    server.start()
    left = run(uncommitted(server))
    airflow.components[airflow.triggerers[0]].start()
    airflow.wait_for("everything committed", lambda: run(uncommitted(server)) == 0)
    assert_nothing_lost(airflow, sent, left)

"""Whole Airflow processes with a Service Bus server: stored before completed, through a kill -9, dead letters, and the
example Dags.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from airflow_provider_sharedstream.example_dags import example_service_bus
from services.airflow import Airflow
from services.proxy import TcpProxy
from services.service_bus import ServiceBusServer
from tests.service_bus.conftest import through
from tests.whole.common import (
    assert_each_has_its_own,
    assert_nothing_lost,
    bodies_by_asset,
    dag_folder,
    numbered,
    shares,
    successful,
)

LOCK_SECONDS = 15
QUEUE = "whole"


def send(server: ServiceBusServer, messages: list[ServiceBusMessage], queue: str = QUEUE) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(messages)


def send_numbers(server: ServiceBusServer, numbers: range, queue: str = QUEUE) -> set[str]:
    bodies = numbered(numbers)
    send(server, [ServiceBusMessage(body) for body in bodies], queue)
    return set(bodies)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_before_completed(tmp_path: Path) -> None:
    with ServiceBusServer(tmp_path / "service-bus") as server:
        server.create_queue(QUEUE, lock_seconds=LOCK_SECONDS)
        server.create_queue(example_service_bus.QUEUE, requires_session=True)
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", server.connection_string)[0])
        with TcpProxy(port) as proxy:
            connection = {"conn_type": "azure_service_bus", "schema": through(server.connection_string, proxy.port)}
            with Airflow(
                tmp_path / "airflow",
                dag_folder(tmp_path / "dags", "dags_service_bus/whole_service_bus.py", example_service_bus),
                connections={"azure_service_bus_default": json.dumps(connection)},
                env={"TEST_QUEUE": QUEUE},
            ) as airflow:
                _everybody_gets_its_own(airflow, server)
                _examples_run(airflow, server)
                _kill_between_storing_and_completing(airflow, server, proxy)
                _dead_letters_start_their_dag(airflow, server)


def _everybody_gets_its_own(airflow: Airflow, server: ServiceBusServer) -> None:
    sent = send_numbers(server, range(200))
    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
    assert_each_has_its_own(airflow, sent)
    airflow.wait_for("a successful run of each Dag", lambda: successful(airflow) >= set(shares(sent)))


def _examples_run(airflow: Airflow, server: ServiceBusServer) -> None:
    orders = [{"items": ["tea"], "n": n} for n in range(5)]
    empty: dict[str, Any] = {"items": []}
    refund = {"total": 3}
    sent = [(body, "order") for body in (*orders, empty)] + [(refund, "refund"), ({"total": 1}, "neither")]
    messages = [ServiceBusMessage(json.dumps(body), subject=kind, session_id="7") for body, kind in sent]
    send(server, messages, example_service_bus.QUEUE)
    airflow.wait_for("nothing left of them", lambda: server.pending(example_service_bus.QUEUE) == 0)
    expected: dict[str, list[Any]] = {
        "example_service_bus_orders": [{**order, "customer": "7"} for order in orders],
        "example_service_bus_refunds": [refund],
        "example_service_bus_refused": [empty],
    }
    airflow.wait_for("a successful run of each example", lambda: successful(airflow) >= set(expected))
    found = bodies_by_asset(airflow)
    for asset, bodies in expected.items():
        assert found[asset] == Counter(map(json.dumps, bodies))
    (refused,) = airflow.client.dag_runs("example_service_bus_refused")
    reasons = airflow.client.xcom("example_service_bus_refused", refused["dag_run_id"], "explain")
    assert reasons == ["an order has items"]


def _kill_between_storing_and_completing(airflow: Airflow, server: ServiceBusServer, proxy: TcpProxy) -> None:
    before = len(airflow.asset_events())
    sent = send_numbers(server, range(1000, 1100))
    # The network stalls as soon as something is stored: what is decided can't be completed any more.
    airflow.wait_for("a stored event", lambda: len(airflow.asset_events()) > before)
    proxy.stall()
    airflow.kill(airflow.triggerers[0])
    proxy.cut()
    left = server.pending(QUEUE)
    proxy.heal()
    airflow.components[airflow.triggerers[0]].start()
    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
    assert_nothing_lost(airflow, sent, left)


def _dead_letters_start_their_dag(airflow: Airflow, server: ServiceBusServer) -> None:
    job = airflow.job_id(airflow.triggerers[0])
    send(server, [ServiceBusMessage("not JSON"), ServiceBusMessage("nor is this")])
    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
    airflow.wait_for(
        "two dead letters", lambda: sum(bodies_by_asset(airflow).get("whole_dead", Counter()).values()) == 2
    )
    airflow.wait_for("a run of their Dag", lambda: "whole_dead" in successful(airflow))
    reasons = [
        message["attributes"]["dead_letter_reason"]
        for event in airflow.asset_events()
        if event.asset == "whole_dead"
        for message in event.extra["payload"]["messages"]
    ]
    assert len(reasons) == 2
    assert all(reasons)
    assert airflow.job_id(airflow.triggerers[0]) == job, "the triggerer was replaced"

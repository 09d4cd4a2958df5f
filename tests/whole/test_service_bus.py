"""Whole Airflow processes with a Service Bus server: stored before completed, through a kill -9, and dead letters."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from services.airflow import Airflow
from services.proxy import TcpProxy
from services.service_bus import ServiceBusServer
from tests.service_bus.conftest import through

LOCK_SECONDS = 15
QUEUE = "whole"


def bodies_by_asset(airflow: Airflow) -> dict[str, Counter[str]]:
    """Which bodies each asset's stored events hold, and how often."""
    found: dict[str, Counter[str]] = {}
    for event in airflow.asset_events():
        held = (json.dumps(message["body"]) for message in event.extra["payload"]["messages"])
        found.setdefault(event.asset, Counter()).update(held)
    return found


def send(server: ServiceBusServer, bodies: list[str]) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        sender.send_messages([ServiceBusMessage(body) for body in bodies])


def send_numbers(server: ServiceBusServer, numbers: range) -> set[str]:
    bodies = [json.dumps({"n": n, "even": n % 2 == 0}) for n in numbers]
    send(server, bodies)
    return set(bodies)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_before_completed(tmp_path: Path) -> None:
    with ServiceBusServer(tmp_path / "service-bus") as server:
        server.create_queue(QUEUE, lock_seconds=LOCK_SECONDS)
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", server.connection_string)[0])
        with TcpProxy(port) as proxy:
            connection = {"conn_type": "azure_service_bus", "schema": through(server.connection_string, proxy.port)}
            with Airflow(
                tmp_path / "airflow",
                Path(__file__).parent / "dags_service_bus",
                connections={"azure_service_bus_default": json.dumps(connection)},
                env={"TEST_QUEUE": QUEUE},
            ) as airflow:
                _everybody_gets_its_own(airflow, server)
                _kill_between_storing_and_completing(airflow, server, proxy)
                _dead_letters_start_their_dag(airflow, server)


def _everybody_gets_its_own(airflow: Airflow, server: ServiceBusServer) -> None:
    sent = send_numbers(server, range(200))
    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
    even = {body for body in sent if json.loads(body)["even"]}
    expected = {"whole_all": sent, "whole_even": even, "whole_odd": sent - even}
    assert {asset: set(bodies) for asset, bodies in bodies_by_asset(airflow).items()} == expected
    airflow.wait_for(
        "a successful run of each Dag",
        lambda: {dag for dag, states in airflow.client.run_states().items() if states.get("success")} >= set(expected),
    )


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
    found = bodies_by_asset(airflow)
    even = {body for body in sent if json.loads(body)["even"]}
    for asset, expected in {"whole_all": sent, "whole_even": even, "whole_odd": sent - even}.items():
        assert expected <= set(found[asset]), f"{asset} lost {expected - set(found[asset])}"
        again = sum(found[asset][body] - 1 for body in expected)
        assert again <= left, "something came twice that had been completed"


def _dead_letters_start_their_dag(airflow: Airflow, server: ServiceBusServer) -> None:
    job = airflow.job_id(airflow.triggerers[0])
    send(server, ["not JSON", "nor is this"])
    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
    airflow.wait_for(
        "two dead letters", lambda: sum(bodies_by_asset(airflow).get("whole_dead", Counter()).values()) == 2
    )
    airflow.wait_for(
        "a run of their Dag", lambda: bool(airflow.client.run_states().get("whole_dead", {}).get("success"))
    )
    reasons = [
        message["attributes"]["dead_letter_reason"]
        for event in airflow.asset_events()
        if event.asset == "whole_dead"
        for message in event.extra["payload"]["messages"]
    ]
    assert len(reasons) == 2
    assert all(reasons)
    assert airflow.job_id(airflow.triggerers[0]) == job, "the triggerer was replaced"

"""Whole Airflow processes with a real SQS server: stored before settled, through a kill -9, and whatever a body
holds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.proxy import SqsProxy
from services.sqs import SqsServer
from services.sqs_queue import SqsQueue
from tests.whole.common import assert_each_has_its_own, assert_nothing_lost, bodies_by_asset, numbered

VISIBILITY_SECONDS = 15


def send(queue: SqsQueue, numbers: range) -> set[str]:
    bodies = numbered(numbers)
    queue.send(bodies)
    return set(bodies)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_before_settled(tmp_path: Path) -> None:
    with SqsServer(tmp_path / "sqs") as server, SqsProxy(server.port) as proxy:
        queue = server.create_queue("whole", visibility_timeout=VISIBILITY_SECONDS)
        assert queue.dead_letters is not None
        with Airflow(
            tmp_path / "airflow",
            Path(__file__).parent / "dags",
            connections={"aws_default": server.connection(proxy.endpoint_url)},
            env={"TEST_QUEUE": "whole"},
        ) as airflow:
            _everybody_gets_its_own(airflow, queue)
            _kill_between_storing_and_deleting(airflow, queue, proxy)
            _no_body_hurts_the_triggerer(airflow, queue)


def _everybody_gets_its_own(airflow: Airflow, queue: SqsQueue) -> None:
    sent = send(queue, range(200))
    airflow.wait_for("an empty queue", lambda: queue.depth().total == 0)
    assert_each_has_its_own(airflow, sent)
    airflow.wait_for(
        "a successful run of each Dag",
        lambda: (
            all(states.get("success") for states in airflow.client.run_states().values())
            and len(airflow.client.run_states()) == 3
        ),
    )
    run = next(run for run in airflow.client.dag_runs("whole_all") if run["state"] == "success")
    returned = airflow.client.xcom("whole_all", run["dag_run_id"], "ids")
    assert returned
    assert len(set(returned)) == len(returned)


def _kill_between_storing_and_deleting(airflow: Airflow, queue: SqsQueue, proxy: SqsProxy) -> None:
    before = len(airflow.asset_events())
    sent = send(queue, range(1000, 1100))
    # The network stalls as soon as something is stored: what is decided can't be deleted any more.
    airflow.wait_for("a stored event", lambda: len(airflow.asset_events()) > before)
    proxy.stall()
    airflow.kill(airflow.triggerers[0])
    proxy.cut()
    left = queue.depth().total
    proxy.heal()
    airflow.components[airflow.triggerers[0]].start()
    airflow.wait_for("an empty queue", lambda: queue.depth().total == 0)
    assert_nothing_lost(airflow, sent, left)


def _no_body_hurts_the_triggerer(airflow: Airflow, queue: SqsQueue) -> None:
    assert queue.dead_letters is not None
    triggerer = airflow.components[airflow.triggerers[0]]
    job = airflow.job_id(triggerer.name)
    stored = ['"\\u0000"', "[" * 20 + "]" * 20, json.dumps("x" * 900_000), "18446744073709551615", "NaN", "plain"]
    refused = ['{"a": 1e999}', '["\\ud800"]', "[" * 200 + "]" * 200, "18446744073709551616"]
    for body in (*stored, *refused):
        queue.send([body])
    airflow.wait_for("an empty queue", lambda: queue.depth().total == 0)
    letters = {m["Body"]: m["MessageAttributes"]["x-sharedstream-reason"] for m in queue.dead_letters.take()}
    assert set(letters) == set(refused)
    found = set(bodies_by_asset(airflow)["whole_all"])
    assert {"18446744073709551615", '"plain"', '"NaN"', json.dumps("x" * 900_000)} <= found
    assert airflow.job_id(triggerer.name) == job, "the triggerer was replaced"
    assert triggerer.running

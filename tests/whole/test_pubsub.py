"""Whole Airflow processes with a Pub/Sub server: stored before acknowledged, through a kill -9, and dead letters; and
the example Dags.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.example_dags import example_pubsub
from services.airflow import Airflow
from services.proxy import TcpProxy
from services.pubsub import PubSubServer
from services.pubsub_subscription import PubSubSubscription
from tests.pubsub.conftest import Googles, made
from tests.pubsub.relay import Relay
from tests.whole.common import (
    assert_each_has_its_own,
    assert_nothing_lost,
    bodies_by_asset,
    dag_folder,
    numbered,
    shares,
    successful,
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_stored_before_acknowledged(tmp_path: Path) -> None:
    with (
        PubSubServer(tmp_path / "pubsub") as server,
        Relay(server.endpoint) as relay,
        TcpProxy(relay.port) as proxy,
    ):
        pubsub = Googles(server, relay, proxy)
        orders = pubsub.subscription()
        examples, refused = (
            made(f"127.0.0.1:{relay.port}", server.project, name, dead_letters=False)
            for name in (example_pubsub.SUBSCRIPTION, example_pubsub.REFUSED)
        )
        with Airflow(
            tmp_path / "airflow",
            dag_folder(tmp_path / "dags", "dags_pubsub/whole_pubsub.py", example_pubsub),
            connections={"google_cloud_default": server.connection()},
            env={"TEST_SUBSCRIPTION": orders.name, "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{proxy.port}"},
        ) as airflow:
            whole = _Whole(airflow, pubsub, orders)
            whole.everybody_gets_its_own()
            whole.examples_run(examples)
            whole.kill_between_storing_and_acknowledging()
            whole.dead_letters_start_their_dag()
        for subscription in (orders, examples, refused):
            subscription.close()


def sorted_bodies(by_asset: dict[str, list[Any]]) -> dict[str, list[str]]:
    return {asset: sorted(map(json.dumps, bodies)) for asset, bodies in by_asset.items()}


class _Whole:
    def __init__(self, airflow: Airflow, pubsub: Googles, orders: PubSubSubscription) -> None:
        self.airflow = airflow
        self.pubsub = pubsub
        self.orders = orders

    def send(self, numbers: range) -> set[str]:
        bodies = numbered(numbers)
        self.orders.send(bodies)
        return set(bodies)

    def wait_until_empty(self) -> None:
        self.airflow.wait_for("an empty subscription", lambda: self.pubsub.owed(self.orders) == 0)

    def everybody_gets_its_own(self) -> None:
        sent = self.send(range(200))
        self.wait_until_empty()
        assert_each_has_its_own(self.airflow, sent)
        self.airflow.wait_for("a successful run of each Dag", lambda: successful(self.airflow) >= set(shares(sent)))

    def examples_run(self, examples: PubSubSubscription) -> None:
        order, large, nonsense = ({"region": "eu", "total": total} for total in (12.5, 5000, "twelve"))
        refund = {"region": "us", "total": 3}
        for body, kind in ((order, "order"), (large, "order"), (nonsense, "order"), (refund, "refund")):
            examples.send([json.dumps(body)], attributes={"kind": kind})
        expected: dict[str, list[Any]] = {
            "example_pubsub_orders": [{**order, "cents": 1250}, {**large, "cents": 500000}],
            "example_pubsub_refunds": [refund],
            "example_pubsub_large_in_europe": [large],
            "example_pubsub_refused": [nonsense],
        }
        self.airflow.wait_for("a successful run of each example", lambda: successful(self.airflow) >= set(expected))
        self.airflow.wait_for("all events of the examples", lambda: self.example_bodies() == sorted_bodies(expected))
        self.airflow.wait_for("nothing left of them", lambda: self.pubsub.owed(examples) == 0)

    def example_bodies(self) -> dict[str, list[str]]:
        found = bodies_by_asset(self.airflow)
        return {asset: sorted(bodies) for asset, bodies in found.items() if asset.startswith("example_")}

    def kill_between_storing_and_acknowledging(self) -> None:
        airflow, proxy = self.airflow, self.pubsub.proxy
        before = len(airflow.asset_events())
        sent = self.send(range(1000, 1100))
        # The network stalls as soon as something is stored: what is decided can't be acknowledged any more.
        airflow.wait_for("a stored event", lambda: len(airflow.asset_events()) > before)
        proxy.stall()
        airflow.kill(airflow.triggerers[0])
        proxy.cut()
        left = self.pubsub.owed(self.orders)
        proxy.heal()
        airflow.components[airflow.triggerers[0]].start()
        self.wait_until_empty()
        assert_nothing_lost(airflow, sent, left)

    def dead_letters_start_their_dag(self) -> None:
        job = self.airflow.job_id(self.airflow.triggerers[0])
        self.orders.send(["not JSON", "nor is this"])
        self.wait_until_empty()
        self.airflow.wait_for("two dead letters", lambda: len(self.reasons()) == 2)
        assert all("JSON" in reason for reason in self.reasons())
        self.airflow.wait_for("a run of their Dag", lambda: "whole_dead" in successful(self.airflow))
        assert self.airflow.job_id(self.airflow.triggerers[0]) == job, "the triggerer was replaced"

    def reasons(self) -> list[str]:
        return [
            message["headers"]["x-sharedstream-reason"]
            for event in self.airflow.asset_events()
            if event.asset == "whole_dead"
            for message in event.extra["payload"]["messages"]
        ]

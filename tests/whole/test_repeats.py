"""Whole Airflow processes: a triggerer that is killed after an event is stored, and before its source is told, makes no
second event where that was asked for. A watcher beside it that didn't ask shows that there was a repeat.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.proxy import SqsProxy
from services.sqs import SqsServer

VISIBILITY_SECONDS = 10
SOURCES = ("queue", "directory")


def events_of(airflow: Airflow, body: str) -> Counter[str]:
    """How many events of each asset hold a message that was sent as `body`."""
    found: Counter[str] = Counter()
    for event in airflow.asset_events():
        for message in event.extra["payload"]["messages"]:
            held = message["body"]
            if (held["name"] if isinstance(held, dict) else held) == body:
                found[event.asset] += 1
    return found


def ids_of(airflow: Airflow, asset: str) -> list[str]:
    """Ids of an asset's messages, in the order in which they were stored."""
    events = [event for event in airflow.asset_events() if event.asset == asset]
    return [message["id"] for event in events for message in event.extra["payload"]["messages"]]


def every_kind_of_task_reads_its_messages(airflow: Airflow) -> None:
    """In TaskFlow, asset by asset; in a classic operator; in a template: of each run the same, and of all runs all."""
    expected = {asset: ids_of(airflow, asset) for asset in ("queue_plain", "directory_plain")}

    def runs() -> list[str]:
        done = [run for run in airflow.client.dag_runs("reader") if run["state"] == "success"]
        return [run["dag_run_id"] for run in sorted(done, key=lambda run: str(run["run_after"]))]

    def read() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {asset: [] for asset in expected}
        for run in runs():
            by_asset = airflow.client.xcom("reader", run, "taskflow")
            classic = airflow.client.xcom("reader", run, "classic")
            template = airflow.client.xcom("reader", run, "template").split()
            assert classic == template
            assert sorted(classic) == sorted(by_asset["queue_plain"] + by_asset["directory_plain"])
            assert by_asset["queue_durable"] == by_asset["directory_durable"] == []
            for asset, one in found.items():
                one += by_asset[asset]
                assert [id for id in classic if id in by_asset[asset]] == by_asset[asset], "in the source's order"
        return found

    airflow.wait_for("every message to be read", lambda: read() == expected)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_between_storing_and_settling(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    with SqsServer(tmp_path / "sqs") as server, SqsProxy(server.port) as proxy:
        queue = server.create_queue("repeats", visibility_timeout=VISIBILITY_SECONDS)
        with Airflow(
            tmp_path / "airflow",
            Path(__file__).parent / "dags_repeats",
            connections={"aws_default": server.connection(proxy.endpoint_url)},
            env={"TEST_QUEUE": "repeats", "TEST_DIRECTORY": str(files)},
        ) as airflow:
            airflow.wait_for("all Dags", lambda: len(airflow.client.dags()) == 5)

            def put(source: str, body: str) -> None:
                if source == "queue":
                    queue.send([body])
                else:
                    (files / f".{body}").write_text(body)
                    (files / f".{body}").rename(files / body)

            def left(source: str) -> int:
                return queue.depth().total if source == "queue" else len(list(files.iterdir()))

            def wait_until_settled() -> None:
                airflow.wait_for("all to be settled", lambda: not any(map(left, SOURCES)))

            for number in range(3):
                for source in SOURCES:
                    put(source, f"first-{number}")
            wait_until_settled()
            every_kind_of_task_reads_its_messages(airflow)

            for place, (source, seconds) in enumerate((("queue", 0.0), ("directory", 0.0), ("queue", 0.3))):
                body = f"message-{place}"
                put(source, body)
                names = {f"{source}_plain", f"{source}_durable"}
                limit = time.monotonic() + 120
                while events_of(airflow, body).keys() != names:
                    assert time.monotonic() < limit
                    time.sleep(0.02)
                proxy.stall()
                time.sleep(seconds)
                airflow.kill(airflow.triggerers[0])
                proxy.cut()
                assert left(source) == 1, "it was settled before the kill"
                proxy.heal()
                airflow.components[airflow.triggerers[0]].start()
                wait_until_settled()
                assert events_of(airflow, body) == {f"{source}_plain": 2, f"{source}_durable": 1}

            # What somebody puts back is no repeat.
            for source, body in (("queue", "message-0"), ("directory", "message-1")):
                put(source, body)
                wait_until_settled()
                assert events_of(airflow, body) == {f"{source}_plain": 3, f"{source}_durable": 2}

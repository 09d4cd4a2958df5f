"""Triggerers in processes of their own: killed, and two at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.pubsub_subscription import PubSubSubscription
from tests.airflow_loop import LONG_SECONDS
from tests.pubsub.conftest import CONN_ID, PubSub


class Triggerer:
    """A process with one watcher.

    :param stored: the file that stands for the database.
    """

    def __init__(self, stored: Path, server: PubSub, orders: PubSubSubscription, *, confirm: bool = True) -> None:
        trigger = {
            "project_id": server.project,
            "subscription": orders.name,
            "gcp_conn_id": CONN_ID,
            "ack_deadline_seconds": 10,
            "batch_size": 5,
        }
        given = {"trigger": trigger, "stored": str(stored), "confirm": confirm}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.pubsub.process", json.dumps(given)],
            stdin=subprocess.PIPE,
            env={**os.environ, "AIRFLOW_HOME": str(stored.parent / "airflow")},
        )

    def __enter__(self) -> Triggerer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait(condition: Callable[[], Any], what: str, seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)


def numbers(stored: Path) -> list[int]:
    # The last line may be half-written; it was not confirmed then either.
    lines = stored.read_text().splitlines() if stored.exists() else []
    return [json.loads(line)["n"] for line in lines if line.endswith("}")]


@pytest.mark.slow
@pytest.mark.parametrize("confirm", [True, False], ids=["confirmed", "stored only"])
def test_a_kill_loses_nothing(pubsub: PubSub, tmp_path: Path, confirm: bool) -> None:
    orders = pubsub.subscription()
    orders.send([json.dumps({"n": n}) for n in range(500)])
    stored = tmp_path / "stored.jsonl"
    with Triggerer(stored, pubsub, orders, confirm=confirm) as first:
        wait(lambda: len(numbers(stored)) >= 30, "thirty stored")
        first.kill()
    at_the_kill = Counter(numbers(stored))
    left = pubsub.owed(orders)
    if not confirm:
        assert left == 500, "something was acknowledged before it was confirmed"
    assert left > 0, "the kill came too late"
    with Triggerer(stored, pubsub, orders):
        # What the killed one had in hand comes when its leases run out.
        wait(lambda: pubsub.owed(orders) == 0, "an empty subscription", 4 * LONG_SECONDS)
        found = Counter(numbers(stored))
    assert set(found) == set(range(500))
    repeats = found - at_the_kill
    assert repeats.total() <= left, "something came again that had been acknowledged"


@pytest.mark.slow
def test_two_processes_share_a_subscription(pubsub: PubSub, tmp_path: Path) -> None:
    orders = pubsub.subscription(ordered=True)
    files = [tmp_path / "one.jsonl", tmp_path / "other.jsonl"]
    streams = pubsub.open_streams
    with Triggerer(files[0], pubsub, orders), Triggerer(files[1], pubsub, orders):
        wait(lambda: pubsub.open_streams == streams + 2, "two streams")
        for start in range(0, 400, 20):
            orders.send([json.dumps({"n": n}) for n in range(start, start + 20)], ordering_key=f"key-{start // 20}")
        wait(lambda: pubsub.owed(orders) == 0, "an empty subscription")
        found = [numbers(stored) for stored in files]
    assert sorted(found[0] + found[1]) == list(range(400)), "lost, or seen by both"
    for key in range(20):
        for seen in found:
            of_key = [n for n in seen if n // 20 == key]
            assert of_key == sorted(of_key)

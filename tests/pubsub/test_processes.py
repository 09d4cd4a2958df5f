"""Triggerers in processes of their own: killed, and two at once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from services.pubsub_subscription import PubSubSubscription
from tests.airflow_loop import LONG_SECONDS
from tests.pubsub.conftest import PubSub, trigger
from tests.triggerer_process import TriggererProcess, wait


def start(folder: Path, server: PubSub, orders: PubSubSubscription, *, confirm: bool = True) -> TriggererProcess:
    watcher = trigger(server, orders, ack_deadline_seconds=10, batch_size=5)
    return TriggererProcess(folder, watcher, confirm=confirm)


def numbers(process: TriggererProcess) -> list[int]:
    return [body["n"] for body in process.bodies]


@pytest.mark.slow
@pytest.mark.parametrize("confirm", [True, False], ids=["confirmed", "stored only"])
def test_a_kill_loses_nothing(pubsub: PubSub, tmp_path: Path, confirm: bool) -> None:
    orders = pubsub.subscription()
    orders.send([json.dumps({"n": n}) for n in range(500)])
    with start(tmp_path, pubsub, orders, confirm=confirm) as first:
        wait(lambda: len(numbers(first)) >= 30, "thirty stored")
        first.kill()
    at_the_kill = Counter(numbers(first))
    left = pubsub.owed(orders)
    if not confirm:
        assert left == 500, "something was acknowledged before it was confirmed"
    assert left > 0, "the kill came too late"
    with start(tmp_path, pubsub, orders) as second:
        # What the killed one had in hand comes when its leases run out.
        wait(lambda: pubsub.owed(orders) == 0, "an empty subscription", 4 * LONG_SECONDS)
        found = Counter(numbers(second))
    assert set(found) == set(range(500))
    repeats = found - at_the_kill
    assert repeats.total() <= left, "something came again that had been acknowledged"


@pytest.mark.slow
def test_two_processes_share_a_subscription(pubsub: PubSub, tmp_path: Path) -> None:
    orders = pubsub.subscription(ordered=True)
    streams = pubsub.open_streams
    with start(tmp_path / "one", pubsub, orders) as one, start(tmp_path / "other", pubsub, orders) as other:
        wait(lambda: pubsub.open_streams == streams + 2, "two streams")
        for first in range(0, 400, 20):
            orders.send([json.dumps({"n": n}) for n in range(first, first + 20)], ordering_key=f"key-{first // 20}")
        wait(lambda: pubsub.owed(orders) == 0, "an empty subscription")
        found = [numbers(process) for process in (one, other)]
    assert sorted(found[0] + found[1]) == list(range(400)), "lost, or seen by both"
    for key in range(20):
        for seen in found:
            of_key = [n for n in seen if n // 20 == key]
            assert of_key == sorted(of_key)

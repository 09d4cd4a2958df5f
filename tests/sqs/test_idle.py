"""Twenty watchers of one queue, and what an idle minute costs.

On a real server, under watchers on Airflow's real `SharedStreamManager`.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.airflow_loop import triggerer, until
from tests.sqs.conftest import Sqs
from tests.sqs.streams import is_empty, send, trigger


@pytest.mark.slow
async def test_twenty_watchers_are_one_connection_and_an_idle_minute_costs_four_receives(sqs: Sqs) -> None:
    queue = sqs.queue()
    async with triggerer() as running:
        watchers = [running.start(trigger(sqs, queue, match={"body.watcher": n})) for n in range(20)]
        await send(queue, [{"watcher": n % 20, "n": n} for n in range(200)])
        await until(lambda: all(len(w.ids) >= 10 for w in watchers), "ten messages at each watcher")
        await until(is_empty(queue), "an empty queue")
        for number, watcher in enumerate(watchers):
            assert sorted(body["n"] for body in watcher.bodies) == list(range(number, 200, 20))
        # The receives in parallel, which the burst was worth, run out one by one: each waits once more for its 20 s.
        await asyncio.sleep(25)
        before = Counter(sqs.proxy.calls)
        await asyncio.sleep(60)
        calls = Counter(sqs.proxy.calls) - before
        assert calls["ReceiveMessage"] <= 4, calls
        assert set(calls) == {"ReceiveMessage"}
        assert sqs.proxy.open == 1

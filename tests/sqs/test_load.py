"""A slow watcher, and more messages than fit.

On a real server, under watchers on Airflow's real `SharedStreamManager`.
"""

from __future__ import annotations

import asyncio
import time

from tests.airflow_loop import triggerer, until
from tests.sqs.conftest import Sqs
from tests.sqs.streams import is_empty, send, trigger


async def test_a_slow_watcher_keeps_nobody_waiting_and_calls_are_few(sqs: Sqs) -> None:
    queue = sqs.queue()
    await send(queue, [{"n": n} for n in range(500)])
    sqs.proxy.calls.clear()
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5) as running:
        slow = running.start(trigger(sqs, queue, apply_function="tests.filters.three_seconds"))
        quick = [running.start(trigger(sqs, queue)) for _ in range(3)]
        await until(lambda: all(len(w.ids) == 500 for w in quick), "500 at each quick watcher")
        done_quick = len(slow.ids)
        assert done_quick < 500, "the slow watcher was not slow"
        await until(lambda: len(slow.ids) == 500, "500 at the slow watcher")
        await until(is_empty(queue), "an empty queue")
    calls = dict(sqs.proxy.calls)
    # What a message costs; renewals of leases depend on how long the machine took, the rest doesn't.
    per_message = sum(calls.values()) / 500
    assert per_message <= 0.3, calls


async def test_five_thousand_waiting_and_twenty_five_watchers(sqs: Sqs) -> None:
    queue = sqs.queue()
    await asyncio.gather(
        *(send(queue, [{"n": n} for n in range(start, start + 1000)]) for start in range(0, 5000, 1000))
    )
    # One supervisor that stores 50 events a second, as measured of Airflow, for all 25 watchers.
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5, ack_timeout=60.0) as running:
        watchers = [running.start(trigger(sqs, queue)) for _ in range(25)]
        highest = 0
        deadline = time.monotonic() + 240
        while not all(len(w.ids) >= 5000 for w in watchers):
            depth = await asyncio.to_thread(queue.depth)
            highest = max(highest, depth.in_flight)
            assert time.monotonic() < deadline, [len(w.ids) for w in watchers]
            await asyncio.sleep(0.5)
        await until(is_empty(queue), "an empty queue")
        assert highest <= 1000, "more in flight than max_in_flight"
        for watcher in watchers:
            assert watcher.failure is None, "a queue overflowed, or an outcome timed out"
            assert sorted(body["n"] for body in watcher.bodies) == list(range(5000))

"""Many messages, many watchers, slow ones, large ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.disposition import Disposition
from tests.machine.running import (
    PRODUCERS,
    QueueTrigger,
    assert_at_rest,
    new_queue,
    numbers,
    producer_of,
    publish,
    triggerer,
)
from tests.machine.virtual import in_virtual_time, now, until

FUNCTIONS = "tests.machine.functions"


class Highest:
    """Looks at a producer all the time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.messages = self.bytes = self.batches = 0
        self.task = asyncio.create_task(self._look())

    async def _look(self) -> None:
        while True:
            for producer in PRODUCERS.get(self._name, ()):
                self.messages = max(self.messages, len(producer.holdings.budget))
                self.bytes = max(self.bytes, producer.holdings.budget.bytes)
                self.batches = max(self.batches, producer.window.offered)
            await asyncio.sleep(0.01)


async def burst(settings: dict[str, Any], *, batches: int, watchers: int, **airflow: Any) -> float:
    """Let a burst through; return the seconds that it took."""
    name, queue = new_queue(settings)
    size = settings["batch_size"]
    publish(queue, batches * size)
    async with triggerer(**airflow) as running:
        highest = Highest(name)
        all_of_them = [running.start(QueueTrigger(name)) for _ in range(watchers)]
        took = await until(lambda: not queue.messages, "an empty queue")
        for watcher in all_of_them:
            assert sorted(numbers(watcher)) == list(range(batches * size)), "each message at each watcher, once"
            assert watcher.failure is None
            assert watcher.restarts == 0
        highest.task.cancel()
        assert 0 < highest.messages <= settings.get("max_in_flight", 1000)
        assert highest.batches < airflow.get("queue_size", 1024)
        assert producer_of(name).holdings.sealed == {Disposition.ACCEPT: batches * size}
    assert_at_rest(producer_of(name))
    return took


@in_virtual_time
async def test_five_thousand_messages_and_twenty_five_watchers() -> None:
    """Fifty events a second: 1,250 events take 25 s at least, and all of them at once would outlast the ack timeout."""
    settings = {"batch_size": 100, "ack_timeout_seconds": 15.0}
    took = await burst(settings, batches=50, watchers=25, store_seconds=0.02, confirm_seconds=1.0, ack_timeout=15.0)
    assert took < 100


@in_virtual_time
async def test_small_batches_neither_overflow_a_queue_nor_outlast_the_ack_timeout() -> None:
    """A thousand single messages for ten watchers are 200 s of storing."""
    settings = {"batch_size": 1, "ack_timeout_seconds": 30.0, "subscriber_queue_size": 64}
    airflow = {"store_seconds": 0.02, "confirm_seconds": 1.0, "ack_timeout": 30.0, "queue_size": 64}
    took = await burst(settings, batches=1000, watchers=10, **airflow)
    assert took < 500


@in_virtual_time
async def test_a_database_that_is_away_for_a_while() -> None:
    """Nothing is stored for a minute: nothing more is offered, and nothing is lost."""
    name, queue = new_queue({"batch_size": 10, "max_in_flight": 200}, lease_seconds=5.0)
    publish(queue, 1000)
    async with triggerer(store_seconds=0.01) as running:
        watcher = running.start(QueueTrigger(name))
        await until(lambda: len(watcher.ids) >= 200)
        running.storing.clear()
        await asyncio.sleep(60)
        stored = len(watcher.ids)
        assert len(producer_of(name).holdings.budget) <= 200
        assert len(queue.messages) >= 1000 - stored
        running.storing.set()
        await until(lambda: not queue.messages)
        assert sorted(numbers(watcher)) == list(range(1000)), "renewed all the while, so nothing came twice"


@in_virtual_time
async def test_a_slow_watcher_delays_no_other() -> None:
    name, queue = new_queue({"batch_size": 10})
    publish(queue, 500)
    async with triggerer(store_seconds=0.002) as running:
        slow = running.start(QueueTrigger(name, apply_function="tests.filters.three_seconds"))
        quick = [running.start(QueueTrigger(name)) for _ in range(4)]
        started = now()
        await until(lambda: all(len(set(numbers(watcher))) == 500 for watcher in quick), "all at the quick ones")
        took = now() - started
        assert len(slow.ids) < 100, "the slow watcher is not slow"
        await until(lambda: not queue.messages)
        # 50 batches of 3 s each.
        assert now() - started > 100
        assert took < (now() - started) / 4
        for watcher in (slow, *quick):
            assert sorted(numbers(watcher)) == list(range(500))


@in_virtual_time
async def test_bytes_are_bounded_too() -> None:
    """Four receives of ten at most may go over, since a size is known only when it is here."""
    megabyte = 1024 * 1024
    name, queue = new_queue({"max_in_flight_bytes": 20 * megabyte, "batch_size": 10})
    publish(queue, 200, filler="x" * megabyte)
    async with triggerer(store_seconds=0.05) as running:
        highest = Highest(name)
        watcher = running.start(QueueTrigger(name, match="body.n == `-1`"))
        await until(lambda: not queue.messages)
        highest.task.cancel()
        assert not watcher.events
        assert 20 * megabyte <= highest.bytes <= (20 + 4 * 10 + 1) * megabyte
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_one_message_larger_than_the_budget_gets_through() -> None:
    name, queue = new_queue({"max_in_flight_bytes": 1000})
    publish(queue, 3, filler="x" * 5000)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name))
        await until(lambda: not queue.messages)
        assert sorted(numbers(watcher)) == [0, 1, 2]


@in_virtual_time
async def test_poison_among_the_good_ends_in_the_dead_letters() -> None:
    name, queue = new_queue({"release_delay_seconds": 1.0, "max_deliveries": 4}, lease_seconds=20.0)
    publish(queue, 100)
    async with triggerer() as running:
        watcher = running.start(QueueTrigger(name, apply_function=f"{FUNCTIONS}.reject_odd"))
        failing = running.start(
            QueueTrigger(name, match="body.n == `4`", apply_function=f"{FUNCTIONS}.fail", on_error="release")
        )
        await until(lambda: not queue.messages)
        assert set(numbers(watcher)) == set(range(0, 100, 2))
        assert not failing.events
        reasons = {letter.id: letter.headers["x-sharedstream-reason"] for letter in queue.dead_letters}
        assert len(queue.dead_letters) == len(reasons) == 51
        assert min(reasons.values()) == "a watcher failed on it (delivered 4 times)"
    assert_at_rest(producer_of(name))


@in_virtual_time
async def test_idle_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty queue is asked as often as its receives return, and nothing else turns."""
    name, _ = new_queue()
    async with triggerer(confirm_seconds=1000.0) as running:
        running.start(QueueTrigger(name))
        await until(lambda: PRODUCERS.get(name))
        producer = producer_of(name)
        receives = 0
        original = producer.consumer.receive

        async def counted(most: int) -> Any:
            nonlocal receives
            receives += 1
            return await original(most)

        monkeypatch.setattr(producer.consumer, "receive", counted)
        steps: dict[str, int] = {"settlement": 0, "lease": 0}
        for part, stepper in (("settlement", producer.holdings.settlement), ("lease", producer.holdings.leases)):
            inner = stepper.step

            async def step(part: str = part, inner: Any = inner) -> None:
                steps[part] += 1
                await inner()

            stepper.step = step  # type: ignore[method-assign]
        await asyncio.sleep(600)
        assert 550 <= receives <= 650
        assert max(steps.values()) <= 2

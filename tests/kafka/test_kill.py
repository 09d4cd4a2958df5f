"""A process that is killed, again and again: nothing is lost, and little comes twice."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.airflow_loop import until
from tests.kafka.conftest import Kafka, Topic, connect
from tests.kafka.stored import MAX_IN_FLIGHT, Store, start

RECORDS = 100_000
KILLS = 10


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_times_killed_while_a_hundred_thousand_records_flow(kafka: Kafka, tmp_path: Path) -> None:
    connect(kafka.server, "kafka_killed", {"session.timeout.ms": "2000", "heartbeat.interval.ms": "500"})
    topic = await kafka.topic(6)
    topic.conn_id = "kafka_killed"
    store = Store(tmp_path / "stored")
    dice = random.Random()

    async def send() -> None:
        for start_at in range(0, RECORDS, 1000):
            await topic.send_json([{"n": n} for n in range(start_at, start_at + 1000)])
            await asyncio.sleep(0.8)

    sending = asyncio.create_task(send())
    left: list[int] = []
    process = start(store, topic)
    begun = 0
    try:
        for number in range(KILLS):
            await until(lambda: len(store.look()) > 0, "progress", 120)
            # It works off what has waited meanwhile.
            await asyncio.sleep(dice.uniform(0.0, 2.0))
            if number % 2:
                await _next_event(store)
            process.kill()
            process.wait()
            store.look()
            committed = await topic.committed()
            stored = store.by_watcher()
            for places in stored.values():
                missing = [(p, o) for p, at in committed.items() for o in range(at) if (p, o) not in places]
                assert not missing, f"committed, and not stored: {missing[:5]}"
            # What this process has stored, and comes again. Its successor may be killed before it reads all of that.
            own = store.by_watcher(begun).values()
            left.append(max(sum(at >= committed.get(p, 0) for p, at in places) for places in own))
            begun = len(store.lines)
            process = start(store, topic)
        await sending
        await until(lambda: _all_committed(topic), "everything committed", 180)
    finally:
        process.kill()
        process.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    store.look()
    for places in store.by_watcher().values():
        assert len(places) == RECORDS, f"lost {RECORDS - len(places)}"
    again = max(sum(places.values()) - len(places) for places in store.by_watcher().values())
    print(f"\nstored and not committed at each kill: {left}; stored twice in the end: {again}")
    assert max(left) <= MAX_IN_FLIGHT
    assert again <= KILLS * MAX_IN_FLIGHT
    assert again > 0, "no kill hit anything in flight: this shows little"


async def _next_event(store: Store) -> None:
    """Return right behind a storing: what was stored is not committed yet."""
    size = store.path.stat().st_size

    async def stored() -> None:
        while store.path.stat().st_size == size:
            await asyncio.sleep(0.002)

    await asyncio.wait_for(stored(), 120)


async def _all_committed(topic: Topic) -> bool:
    ends = await topic.ends()
    return sum(ends.values()) == RECORDS and await topic.committed() == ends

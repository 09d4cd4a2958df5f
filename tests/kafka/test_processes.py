"""Two processes with the same stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.airflow_loop import until
from tests.kafka.conftest import Kafka, connect
from tests.kafka.stored import MAX_IN_FLIGHT, Store, start
from tests.kafka.test_stream import emptied


@pytest.mark.slow
async def test_two_processes_share_the_partitions_and_one_takes_over_from_the_other(
    kafka: Kafka, tmp_path: Path
) -> None:
    """As two triggerers do with the cohort off, each with all watchers."""
    connect(kafka.server, "kafka_shared", {"session.timeout.ms": "2000", "heartbeat.interval.ms": "500"})
    topic = await kafka.topic(6)
    topic.conn_id = "kafka_shared"
    stores = [Store(tmp_path / "one"), Store(tmp_path / "two")]
    processes = [start(store, topic) for store in stores]
    sent = 0

    async def send() -> None:
        nonlocal sent
        while True:
            await topic.send_json([{"n": n} for n in range(sent, sent + 50)])
            sent += 50
            await asyncio.sleep(0.1)

    async def both_read() -> bool:
        lines = [store.look() for store in stores]
        return all(lines) and await topic.members() == 2

    sending = asyncio.create_task(send())
    try:
        await until(both_read, "both at work", 120)
        at_work = [set().union(*store.by_watcher().values()) for store in stores]
        processes[0].kill()
        processes[0].wait()
        stores[0].look()
        await until(lambda: len(stores[1].look()) > 0, "the other goes on")
        await asyncio.sleep(5)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await until(emptied(topic), "everything committed", 120)
    finally:
        sending.cancel()
        for process in processes:
            process.kill()
            process.wait()
    stores[1].look()
    everything = {(number, offset) for number, end in (await topic.ends()).items() for offset in range(end)}
    assert len(everything) >= sent > 0
    first, second = (store.by_watcher() for store in stores)
    for number in first:
        both = Counter(first[number]) + Counter(second[number])
        assert set(both) == everything, f"watcher {number} lost {len(everything - set(both))}"
        assert sum(both.values()) - len(both) <= 3 * MAX_IN_FLIGHT, "more came twice than the moves explain"
    # Each had partitions of its own.
    assert at_work[0] - at_work[1]
    assert at_work[1] - at_work[0]

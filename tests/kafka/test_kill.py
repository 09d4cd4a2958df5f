"""Processes that are killed: nothing is lost, and little comes twice."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.airflow_loop import until
from tests.kafka.conftest import Kafka, Topic, connect
from tests.kafka.process import WATCHERS

RECORDS = 100_000
KILLS = 10
MAX_IN_FLIGHT = 1000

Place = tuple[int, int]


class Store:
    """What the process has stored: by watcher, how often each partition and offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.lines: list[str] = []
        self._read = 0

    def look(self) -> list[str]:
        """Return the lines that are new."""
        with self.path.open() as file:
            file.seek(self._read)
            new = file.read()
        assert new.endswith("\n") or not new, "half an event"
        self._read += len(new)
        lines = new.split()
        found = [" ".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
        self.lines += found
        return found

    def by_watcher(self) -> dict[int, Counter[Place]]:
        found: dict[int, Counter[Place]] = {number: Counter() for number in range(1, WATCHERS + 1)}
        for line in self.lines:
            watcher, partition, offset = map(int, line.split())
            found[watcher][(partition, offset)] += 1
        return found


def start(store: Store, topic: Topic) -> subprocess.Popen[bytes]:
    arguments = json.dumps(topic.arguments(max_in_flight=MAX_IN_FLIGHT))
    with store.path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.process", str(store.path), arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS": "0.5"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


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
    again: list[int] = []
    process = start(store, topic)
    try:
        for _ in range(KILLS):
            await until(lambda: len(store.look()) > 0, "progress", 120)
            # It works off what has waited meanwhile.
            await asyncio.sleep(dice.uniform(0.0, 2.0))
            process.kill()
            process.wait()
            store.look()
            committed = await topic.committed()
            stored = store.by_watcher()
            for places in stored.values():
                missing = [(p, o) for p, at in committed.items() for o in range(at) if (p, o) not in places]
                assert not missing, f"committed, and not stored: {missing[:5]}"
            again.append(max(sum(places.values()) - len(places) for places in stored.values()))
            process = start(store, topic)
        await sending
        await until(lambda: _all_committed(topic), "everything committed", 180)
    finally:
        process.kill()
        process.wait()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    store.look()
    again.append(max(sum(places.values()) - len(places) for places in store.by_watcher().values()))
    for places in store.by_watcher().values():
        assert len(places) == RECORDS, f"lost {RECORDS - len(places)}"
    each = [later - earlier for earlier, later in zip([0, *again], again, strict=False)]
    print(f"\nstored twice after each kill: {each}")
    assert max(each) <= MAX_IN_FLIGHT, each
    assert again[-1] > 0, "no kill hit anything in flight: this shows little"


async def _all_committed(topic: Topic) -> bool:
    ends = await topic.ends()
    return sum(ends.values()) == RECORDS and await topic.committed() == ends


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
        await until(lambda: _everything_committed(topic), "everything committed", 120)
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


async def _everything_committed(topic: Topic) -> bool:
    return await topic.pending() == 0

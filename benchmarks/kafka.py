"""How many records a second come through, next to a bare aiokafka loop on the same topic.

``python -m benchmarks.kafka`` starts a broker, writes a million records of 200 bytes over 12 partitions, and reads them
again and again in one process: by aiokafka alone (``getmany`` of 1,000, and a commit after each), and through Airflow's
own ``SharedStreamManager`` with a watcher whose events count as stored at once, in batches of 1,000. The two take
turns. Then watchers of other kinds read a part of the topic: what they do with a record costs more than to bring it to
them.

It fails where the machine is slower than 0.6 of aiokafka alone (the median of the pairs), or its memory grows.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
import structlog
from aiokafka import AIOKafkaConsumer
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from services.kafka import KafkaServer

RECORDS = 1_000_000
PART = 300_000
VALUE_BYTES = 200
PARTITIONS = 12
BATCH = 1000
MAX_IN_FLIGHT = 20_000
PAIRS = 5
LEAST_RATIO = 0.6
MOST_GROWTH = 1.15
"""Of memory, from the first tenth of a reading to its last."""
LOOK_SECONDS = 0.002
TOPIC = "throughput"
NUMBERS = itertools.count()


class Measured(NamedTuple):
    """One reading."""

    rate: float
    """Records a second."""
    cpu_microseconds: float
    """Of a record."""
    megabytes: list[int]
    """Resident memory after each tenth."""


async def measured(records: int, has_begun: Callable[[], Any], settled: Callable[[], int]) -> Measured:
    """Measure from the first record to the last commit."""
    process = psutil.Process()
    while not has_begun():
        await asyncio.sleep(LOOK_SECONDS)
    began, cpu = time.perf_counter(), time.process_time()
    megabytes: list[int] = []
    while (count := settled()) < records:
        if count >= records * (len(megabytes) + 1) // 10:
            megabytes.append(process.memory_info().rss // 2**20)
        await asyncio.sleep(LOOK_SECONDS)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return Measured(count / seconds, cpu / count * 1e6, megabytes)


async def aiokafka_alone(bootstrap: str, records: int) -> Measured:
    count = committed = 0
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=f"bare-{next(NUMBERS)}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        measuring = asyncio.create_task(measured(records, lambda: count, lambda: committed))
        while committed < records:
            for found in (await consumer.getmany(timeout_ms=1000, max_records=BATCH)).values():
                count += len(found)
            await consumer.commit()
            committed = count
        return await measuring


class MeasuredTrigger(KafkaSharedStreamTrigger):
    """The trigger, whose producer can be looked at."""

    producers: ClassVar[list[BrokerStreamProducer]] = []

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        producer = super().create_shared_stream_producer(kwargs)
        assert isinstance(producer, BrokerStreamProducer)
        cls.producers.append(producer)
        return producer


class CountingTrigger(MeasuredTrigger):
    """A user's own filter that counts: what is measured is the machine."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            yield TriggerEvent({"messages": len(batch)})


async def through_the_manager(cls: type[MeasuredTrigger], records: int, **arguments: Any) -> Measured:
    trigger = cls(
        [TOPIC],
        group_id=f"ours-{next(NUMBERS)}",
        auto_offset_reset="earliest",
        batch_size=BATCH,
        max_in_flight=MAX_IN_FLIGHT,
        on_reject="accept",
        **arguments,
    )
    manager, key = SharedStreamManager(), trigger.shared_stream_key()
    MeasuredTrigger.producers.clear()

    async def watch() -> None:
        stream = manager.subscribe(trigger_id=1, trigger=trigger, key=key)
        try:
            async for _ in trigger.filter_shared_stream(stream):
                stored_as = manager.bind_pending_event(trigger_id=1, key=key)
                if stored_as is not None:
                    manager.confirm_persisted([stored_as])
        finally:
            await manager.unsubscribe(1, key)

    watching = asyncio.create_task(watch())
    while not MeasuredTrigger.producers:
        await asyncio.sleep(LOOK_SECONDS)
    holdings = MeasuredTrigger.producers[0].holdings
    try:
        found = await measured(
            records,
            lambda: len(holdings.budget) or holdings.sealed[Disposition.ACCEPT],
            lambda: holdings.sealed[Disposition.ACCEPT],
        )
        assert set(holdings.sealed) == {Disposition.ACCEPT}, holdings.sealed
        return found
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await manager.stop_all()


def line(name: str, found: Measured, base: float) -> str:
    memory = f"{found.megabytes[0]} to {found.megabytes[-1]} MB"
    return f"{found.rate:9,.0f}/s  {found.rate / base:5.2f}  {found.cpu_microseconds:5.1f} us  {memory:16}  {name}"


async def measure(bootstrap: str, pairs: int, records: int) -> list[str]:
    """Print what was measured; return what isn't as it should be."""
    alone: list[Measured] = []
    machine: list[Measured] = []
    for _ in range(pairs):
        gc.collect()
        alone.append(await aiokafka_alone(bootstrap, records))
        print(line("aiokafka alone, getmany and commit", alone[-1], alone[-1].rate), flush=True)
        gc.collect()
        machine.append(await through_the_manager(CountingTrigger, records))
        print(line("the machine, with a filter that counts", machine[-1], alone[-1].rate), flush=True)
    base = statistics.median(one.rate for one in alone)
    others: dict[str, dict[str, Any]] = {
        "a watcher that matches nothing": {"match": {"headers.kind": "none"}},
        "a watcher with every record in its events": {"max_payload_bytes": None},
        "the same, in events of at most 64 KiB": {},
    }
    for name, arguments in others.items():
        found = await through_the_manager(MeasuredTrigger, min(records, PART), **arguments)
        print(line(name, found, base), flush=True)
    ratio = statistics.median(ours.rate / theirs.rate for ours, theirs in zip(machine, alone, strict=True))
    growth = max(one.megabytes[-1] / one.megabytes[0] for one in machine)
    print(
        f"median of {pairs} pairs: {ratio:.2f} of aiokafka alone; memory at the end at most {growth:.2f} of the start"
    )
    wrong = []
    if ratio < LEAST_RATIO:
        wrong.append(f"{ratio:.2f} is less than {LEAST_RATIO}")
    if growth > MOST_GROWTH:
        wrong.append(f"memory has grown to {growth:.2f}")
    return wrong


async def main(pairs: int, records: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, KafkaServer(Path(folder)) as server:
        os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = server.connection()
        os.environ["AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS"] = "0"
        async with server.admin() as admin:
            await admin.create_topic(TOPIC, PARTITIONS)
        await asyncio.to_thread(server.fill, TOPIC, records, value_bytes=VALUE_BYTES)
        print(f"{server.taken}; {records} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, batches of {BATCH}")
        print("records a second, as part of aiokafka's, CPU time of a record, resident memory")
        return await measure(server.bootstrap, pairs, records)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--records", type=int, default=RECORDS)
    options = parser.parse_args()
    # Lines about joins and leaves, a hundred of them.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.ERROR)
    if wrong := asyncio.run(main(options.pairs, options.records)):
        sys.exit("; ".join(wrong))

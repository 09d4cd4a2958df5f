"""How many records a second come through, next to a bare aiokafka loop on the same topic.

``python -m benchmarks.kafka [records]`` starts a broker, writes the records (200 bytes each, over 12 partitions), and
reads them again and again in one process: by aiokafka alone (``getmany`` of 1,000, and a commit after each), and
through Airflow's own ``SharedStreamManager`` with a watcher whose events count as stored at once, in batches of 1,000.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import psutil
from aiokafka import AIOKafkaConsumer
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from services.kafka import KafkaServer

RECORDS = 1_000_000
VALUE_BYTES = 200
PARTITIONS = 12
BATCH = 1000
MAX_IN_FLIGHT = 20_000
ROUNDS = 1
TOPIC = "throughput"
NUMBERS = itertools.count()


class Measured(NamedTuple):
    """One reading of the whole topic."""

    seconds: float
    cpu_seconds: float
    megabytes: list[int]
    """Resident memory, ten times along the way."""


class Meter:
    """Measures from the first record to the last commit."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._process = psutil.Process()
        self._started: tuple[float, float] | None = None
        self._next = 0
        self.megabytes: list[int] = []
        self.done = asyncio.Event()
        self.result: Measured | None = None

    def begin(self) -> None:
        if self._started is None:
            self._started = (time.perf_counter(), time.process_time())

    def settled(self, count: int) -> None:
        assert self._started is not None
        if count >= self._next:
            self._next += self._records // 10
            self.megabytes.append(self._process.memory_info().rss // 2**20)
        if count >= self._records:
            began, cpu = self._started
            self.result = Measured(time.perf_counter() - began, time.process_time() - cpu, self.megabytes)
            self.done.set()


class MeasuredTrigger(KafkaSharedStreamTrigger):
    """Tells the meter what its stream does."""

    meter: ClassVar[Meter]

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
        producer = super().create_shared_stream_producer(kwargs)
        assert isinstance(producer, BrokerStreamProducer)
        arrived, seal = producer.intake._arrived, producer.holdings.settlement._sealed

        def noted_arrived(deliveries: Any) -> None:
            cls.meter.begin()
            arrived(deliveries)

        def noted_seal(sealed: Any) -> None:
            seal(sealed)
            cls.meter.settled(producer.holdings.sealed[Disposition.ACCEPT])

        producer.intake._arrived, producer.holdings.settlement._sealed = noted_arrived, noted_seal
        return producer


class CountingTrigger(MeasuredTrigger):
    """A user's own filter that only counts: no record is decoded."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            yield TriggerEvent({"messages": len(batch)})


async def through_the_manager(trigger: MeasuredTrigger, meter: Meter) -> None:
    manager, key = SharedStreamManager(), trigger.shared_stream_key()
    MeasuredTrigger.meter = meter

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
    waiting = asyncio.create_task(meter.done.wait())
    await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await manager.stop_all()


async def bare(bootstrap: str, meter: Meter) -> None:
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=f"bare-{next(NUMBERS)}",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    ) as consumer:
        count = 0
        while not meter.done.is_set():
            found = await consumer.getmany(timeout_ms=1000, max_records=BATCH)
            if found:
                meter.begin()
                await consumer.commit()
                count += sum(map(len, found.values()))
                meter.settled(count)


def trigger_of(cls: type[MeasuredTrigger], **more: Any) -> MeasuredTrigger:
    return cls(
        [TOPIC],
        group_id=f"ours-{next(NUMBERS)}",
        auto_offset_reset="earliest",
        batch_size=BATCH,
        max_in_flight=MAX_IN_FLIGHT,
        **more,
    )


async def main(records: int) -> None:
    with tempfile.TemporaryDirectory() as folder, KafkaServer(Path(folder)) as server:
        os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = server.connection()
        os.environ["AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS"] = "0"
        async with server.admin() as admin:
            await admin.create_topic(TOPIC, PARTITIONS)
        await asyncio.to_thread(server.fill, TOPIC, records, value_bytes=VALUE_BYTES)
        ways: dict[str, Callable[[Meter], Awaitable[None]]] = {
            "aiokafka alone, getmany and commit": lambda meter: bare(server.bootstrap, meter),
            "a user's filter that counts": lambda m: through_the_manager(trigger_of(CountingTrigger), m),
            "a watcher that matches nothing": lambda m: through_the_manager(
                trigger_of(MeasuredTrigger, match={"headers.kind": "none"}), m
            ),
            "a watcher with every message in its events": lambda m: through_the_manager(
                trigger_of(MeasuredTrigger, max_payload_bytes=None), m
            ),
            "the same, events of at most 64 KiB": lambda m: through_the_manager(trigger_of(MeasuredTrigger), m),
        }
        await measure(server, records, ways)


async def measure(server: KafkaServer, records: int, ways: dict[str, Callable[[Meter], Awaitable[None]]]) -> None:
    print(f"{server.taken}; {records} records of {VALUE_BYTES} bytes, {PARTITIONS} partitions, batches of {BATCH}")
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            gc.collect()
            meter = Meter(records)
            await way(meter)
            assert meter.result is not None, name
            found[name].append(meter.result)
    base = max(records / one.seconds for one in found[next(iter(ways))])
    print(f"best of {ROUNDS}: records/s, part of aiokafka's, CPU seconds, MB from first to last")
    for name, results in found.items():
        best = min(results)
        rate = records / best.seconds
        memory = f"{best.megabytes[0]} to {best.megabytes[-1]}, at most {max(best.megabytes)}"
        print(f"{rate:9,.0f}  {rate / base:5.2f}  {best.cpu_seconds:5.1f}  {memory:24}  {name}")
    print(json.dumps({name: [round(records / one.seconds) for one in results] for name, results in found.items()}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS))

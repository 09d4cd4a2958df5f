"""Kafka through the whole machine, next to aiokafka alone (:mod:`benchmarks.side_by_side`).

``python -m benchmarks.kafka`` starts a broker, writes records of 200 bytes over 12 partitions, and reads them again
and again, each time in a new group: by aiokafka alone (``getmany`` of 1,000, and a commit after each), and with each
kind of watcher, in batches of 1,000.

It fails where a watcher that counts is slower than 0.6 of aiokafka alone (the median of the rounds), or memory grows.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer

from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from benchmarks.side_by_side import Progress, Rounds, bodies, compare, median_ratio, options
from services.kafka import KafkaServer

RECORDS = 500_000
PARTITIONS = 12
BATCH = 1000
MAX_IN_FLIGHT = 20_000
LEAST_RATIO = 0.6
MOST_GROWTH = 1.15
"""Of memory, from the first tenth of a reading to its last."""
TOPIC = "throughput"


class Kafka:
    """One topic, read by many groups."""

    name = "Kafka"
    trigger_class = KafkaSharedStreamTrigger

    def __init__(self, server: KafkaServer) -> None:
        self._server = server
        self._numbers = itertools.count()

    async def fill(self, messages: int) -> str:
        """Return a new group's name: the topic holds so many."""
        return f"group-{next(self._numbers)}"

    async def alone(self, place: str, progress: Progress) -> None:
        async with AIOKafkaConsumer(
            TOPIC,
            bootstrap_servers=self._server.bootstrap,
            group_id=place,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        ) as consumer:
            while progress.settled < progress.messages:
                for found in (await consumer.getmany(timeout_ms=1000, max_records=BATCH)).values():
                    progress.arrived += len(found)
                await consumer.commit()
                progress.settled = progress.arrived

    def arguments(self, place: str) -> dict[str, Any]:
        return {
            "topics": [TOPIC],
            "group_id": place,
            "auto_offset_reset": "earliest",
            "batch_size": BATCH,
            "max_in_flight": MAX_IN_FLIGHT,
            "on_reject": "accept",
        }


def wrong(found: Rounds) -> list[str]:
    """Return what isn't as it should be."""
    ratio = median_ratio(found, "counts only")
    growth = max(one.megabytes[-1] / one.megabytes[0] for one in found["counts only"])
    print(f"memory at the end of a reading is at most {growth:.2f} of that after its first tenth")
    return [
        *([f"{ratio:.2f} of aiokafka alone is less than {LEAST_RATIO}"] if ratio < LEAST_RATIO else []),
        *([f"memory has grown to {growth:.2f}"] if growth > MOST_GROWTH else []),
    ]


async def main(rounds: int, records: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, KafkaServer(Path(folder)) as server:
        os.environ["AIRFLOW_CONN_KAFKA_DEFAULT"] = server.connection()
        async with server.admin() as admin:
            await admin.create_topic(TOPIC, PARTITIONS)
        await asyncio.to_thread(server.fill, TOPIC, records, bodies(1000))
        print(server.taken)
        return wrong(await compare(Kafka(server), rounds, records))


if __name__ == "__main__":
    given = options(__doc__, RECORDS)
    if said := asyncio.run(main(given.rounds, given.messages)):
        sys.exit("; ".join(said))

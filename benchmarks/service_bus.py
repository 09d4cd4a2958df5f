"""Messages a second through the whole machine, next to a bare loop of the Azure SDK: receive, complete at once.

``python -m benchmarks.service_bus`` prints a line for each pair of runs, on one server, and the medians. It needs what
`tests/service_bus` needs. One watcher; its events are confirmed at once, as by a database that takes no time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from services.service_bus import ServiceBusServer
from tests.airflow_loop import triggerer, until

CONN_ID = "service_bus_benchmark"
BATCH = 100
BODY = {"order": 7, "region": "eu", "amount": 120.5, "items": [{"sku": f"sku-{n}", "quantity": n} for n in range(5)]}


class MeasuredTrigger(ServiceBusSharedStreamTrigger):
    """The trigger, whose producer can be looked at."""

    producers: list[BrokerStreamProducer] = []

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        producer = super().create_shared_stream_producer(kwargs)
        assert isinstance(producer, BrokerStreamProducer)
        cls.producers.append(producer)
        return producer


async def fill(client: ServiceBusClient, queue: str, count: int) -> None:
    async with client.get_queue_sender(queue) as sender:
        for start in range(0, count, 500):
            numbers = range(start, min(count, start + 500))
            await sender.send_messages([ServiceBusMessage(json.dumps({**BODY, "n": n})) for n in numbers])


async def bare(client: ServiceBusClient, queue: str, count: int) -> float:
    """Return messages a second, from the first receive's end on."""
    async with client.get_queue_receiver(queue) as receiver:
        messages = await receiver.receive_messages(max_message_count=BATCH, max_wait_time=5)
        started = time.perf_counter()
        done = 0
        while done < count:
            for message in messages:
                await receiver.complete_message(message)
            done += len(messages)
            if done < count:
                messages = await receiver.receive_messages(max_message_count=BATCH, max_wait_time=5)
        return count / (time.perf_counter() - started)


async def machine(queue: str, count: int) -> float:
    """Return messages a second, from the first event on."""
    MeasuredTrigger.producers.clear()
    async with triggerer(confirm_seconds=0.001) as running:
        watcher = running.start(MeasuredTrigger(queue, azure_service_bus_conn_id=CONN_ID))
        await until(lambda: watcher.events, "the first event")
        started = time.perf_counter()
        producer = MeasuredTrigger.producers[0]
        before = producer.holdings.sealed[Disposition.ACCEPT]
        await until(lambda: producer.holdings.sealed[Disposition.ACCEPT] >= count, "all to be settled", 300)
        seconds = time.perf_counter() - started
        assert len(set(watcher.ids)) == len(watcher.ids) == count, "lost or repeated"
        return (count - before) / seconds


async def measure(server: ServiceBusServer, pairs: int, count: int) -> None:
    client = ServiceBusClient.from_connection_string(server.connection_string, retry_total=0)
    bares, machines = [], []
    print(f"{count} messages a run, on {server.taken}")
    for pair in range(pairs):
        queue = server.create_queue(f"benchmark-{pair}")
        await fill(client, queue, count)
        bares.append(await bare(client, queue, count))
        await fill(client, queue, count)
        machines.append(await machine(queue, count))
        print(f"  bare SDK {bares[-1]:6.0f}/s   machine {machines[-1]:6.0f}/s   {machines[-1] / bares[-1]:.2f}")
    ratios = [m / b for m, b in zip(machines, bares, strict=True)]
    print(
        f"medians: bare SDK {statistics.median(bares):.0f}/s, machine {statistics.median(machines):.0f}/s, "
        f"ratio {statistics.median(ratios):.2f}"
    )
    await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=3000)
    arguments = parser.parse_args()
    logging.getLogger("azure.servicebus").setLevel(logging.WARNING)
    os.environ.setdefault("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")
    with tempfile.TemporaryDirectory() as folder, ServiceBusServer(Path(folder)) as server:
        os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = server.connection()
        asyncio.run(measure(server, arguments.pairs, arguments.messages))


if __name__ == "__main__":
    main()

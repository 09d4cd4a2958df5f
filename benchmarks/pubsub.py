"""Messages a second through the whole machine, next to the client library's own subscriber, acking at once.

``python -m benchmarks.pubsub`` prints a line for each pair of runs, and the medians, for Google's emulator (where
there is one) and for the tests' own. Each counts from the first message to the last one acknowledged. One watcher; its
events are confirmed at once, as by a database that takes no time.

Google's emulator sends a stream 2,000 messages a second at most, whoever reads it; the tests' own has no such bound.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.cloud.pubsub_v1 import SubscriberClient

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from services.process import LocalProcess, free_port, listening
from services.pubsub import PubSubServer
from services.pubsub_subscription import PubSubSubscription
from tests.airflow_loop import triggerer

CONN_ID = "google_benchmark"
PADDING = "x" * 170


class MeasuredTrigger(PubSubSharedStreamTrigger):
    """The trigger, whose producer can be looked at."""

    producers: list[BrokerStreamProducer] = []

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        producer = super().create_shared_stream_producer(kwargs)
        assert isinstance(producer, BrokerStreamProducer)
        cls.producers.append(producer)
        return producer


def library(subscription: PubSubSubscription, count: int) -> float:
    """Return messages a second of ``SubscriberClient.subscribe``."""
    times: list[float] = []
    done = threading.Event()

    def callback(message: Any) -> None:
        message.ack()
        times.append(time.perf_counter())
        if len(times) >= count:
            done.set()

    client = SubscriberClient()
    future = client.subscribe(subscription.path, callback=callback)
    try:
        assert done.wait(300), f"{len(times)} of {count} after 300 s"
    finally:
        future.cancel()
        future.result(timeout=60)
        client.close()
    return (len(times) - 1) / (times[-1] - times[0])


async def machine(project: str, subscription: PubSubSubscription, count: int) -> float:
    """Return messages a second of the trigger."""
    MeasuredTrigger.producers.clear()
    async with triggerer(confirm_seconds=0.001) as running:
        watcher = running.start(MeasuredTrigger(project, subscription.name, gcp_conn_id=CONN_ID))
        await reached(lambda: bool(MeasuredTrigger.producers))
        holdings = MeasuredTrigger.producers[0].holdings
        # In flight, or settled already: at most of the moments looked at, few are in flight.
        await reached(lambda: bool(holdings.budget.open or holdings.sealed[Disposition.ACCEPT]))
        started = time.perf_counter()
        await reached(lambda: holdings.sealed[Disposition.ACCEPT] >= count)
        seconds = time.perf_counter() - started
        assert len(set(watcher.ids)) == len(watcher.ids) == count, "lost or repeated"
    return (count - 1) / seconds


async def reached(condition: Callable[[], bool]) -> None:
    """Wait until ``condition()`` holds, to the millisecond."""
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "nothing has come of it for 300 s"
        await asyncio.sleep(0.001)


def measure(endpoint: str, project: str, taken: str, pairs: int, count: int) -> None:
    os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
    connection = {"conn_type": "google_cloud_platform", "extra": {"project": project}}
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = json.dumps(connection)
    bodies = [json.dumps({"n": n, "padding": PADDING}) for n in range(count)]
    libraries, machines = [], []
    print(f"{count} messages a run, on {taken}")
    for pair in range(pairs):
        subscription = PubSubSubscription(endpoint, project, f"benchmark-{os.getpid()}-{pair}")
        subscription.create()
        subscription.send(bodies)
        libraries.append(library(subscription, count))
        # What the library leaves behind is that subscription's.
        again = PubSubSubscription(endpoint, project, f"benchmark-{os.getpid()}-{pair}-machine")
        again.create()
        again.send(bodies)
        machines.append(asyncio.run(machine(project, again, count)))
        subscription.close()
        again.close()
        print(f"  library {libraries[-1]:6.0f}/s   machine {machines[-1]:6.0f}/s   {machines[-1] / libraries[-1]:.2f}")
    ratio = statistics.median(m / b for m, b in zip(machines, libraries, strict=True))
    print(
        f"medians: library {statistics.median(libraries):.0f}/s, machine {statistics.median(machines):.0f}/s, "
        f"ratio {ratio:.2f}"
    )


@contextmanager
def own_emulator(folder: Path) -> Iterator[str]:
    """The tests' own emulator as a process, so that it shares no interpreter with what is measured."""
    port = free_port()
    process = LocalProcess(
        "Pub/Sub emulator",
        [sys.executable, "-m", "tests.emulators.pubsub", f"--port={port}"],
        log_file=folder / "own.log",
        ready=lambda: listening(port),
    )
    process.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--messages", type=int, default=5000)
    arguments = parser.parse_args()
    os.environ.setdefault("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")
    with tempfile.TemporaryDirectory() as folder:
        with PubSubServer(Path(folder)) as server:
            if server.real:
                measure(server.endpoint, server.project, server.taken, arguments.pairs, arguments.messages)
        with own_emulator(Path(folder)) as endpoint:
            measure(endpoint, "own", "the tests' own emulator", arguments.pairs, arguments.messages)


if __name__ == "__main__":
    main()

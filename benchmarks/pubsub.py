"""Pub/Sub through the whole machine, next to the client library's own subscriber alone
(:mod:`benchmarks.side_by_side`).

``python -m benchmarks.pubsub`` measures with Google's emulator, where there is one, and with the tests' own. The
library's side acknowledges each message in its callback. Google's emulator sends a stream 2,000 messages a second at
most, whoever reads it; the tests' own has no such bound.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from google.cloud.pubsub_v1 import SubscriberClient

from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from benchmarks.side_by_side import LIMIT_SECONDS, Progress, bodies, compare, options
from services.process import LocalProcess, free_port, listening
from services.pubsub import PubSubServer
from services.pubsub_subscription import PubSubSubscription

CONN_ID = "google_benchmark"
MESSAGES = 10_000


class PubSub:
    """Subscriptions, one for each reading: what a subscriber leaves behind is that subscription's."""

    trigger_class = PubSubSharedStreamTrigger

    def __init__(self, name: str, endpoint: str, project: str) -> None:
        self.name = name
        self._endpoint = endpoint
        self._project = project
        self._numbers = itertools.count()

    async def fill(self, messages: int) -> PubSubSubscription:
        name = f"benchmark-{os.getpid()}-{next(self._numbers)}"
        subscription = PubSubSubscription(self._endpoint, self._project, name)
        await asyncio.to_thread(subscription.create)
        await asyncio.to_thread(subscription.send, bodies(messages))
        return subscription

    async def alone(self, place: PubSubSubscription, progress: Progress) -> None:
        await asyncio.to_thread(self._subscribe, place, progress)

    @staticmethod
    def _subscribe(place: PubSubSubscription, progress: Progress) -> None:
        done, lock = threading.Event(), threading.Lock()

        def callback(message: Any) -> None:
            message.ack()
            with lock:
                progress.arrived += 1
                progress.settled += 1
            if progress.settled >= progress.messages:
                done.set()

        with SubscriberClient() as client:
            future = client.subscribe(place.path, callback=callback)
            try:
                assert done.wait(LIMIT_SECONDS), f"{progress.settled} of {progress.messages}"
            finally:
                future.cancel()
                future.result(timeout=60)

    def arguments(self, place: PubSubSubscription) -> dict[str, Any]:
        return {"project_id": self._project, "subscription": place.name, "gcp_conn_id": CONN_ID}


def measure(name: str, endpoint: str, project: str, rounds: int, messages: int) -> None:
    os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
    connection = {"conn_type": "google_cloud_platform", "extra": {"project": project}}
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = json.dumps(connection)
    asyncio.run(compare(PubSub(name, endpoint, project), rounds, messages))


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
    given = options(__doc__, MESSAGES)
    with tempfile.TemporaryDirectory() as folder:
        with PubSubServer(Path(folder)) as server:
            print(server.taken)
            if server.real:
                measure("Pub/Sub, Google's emulator", server.endpoint, server.project, given.rounds, given.messages)
        with own_emulator(Path(folder)) as endpoint:
            measure("Pub/Sub, the tests' emulator", endpoint, "own", given.rounds, given.messages)


if __name__ == "__main__":
    main()

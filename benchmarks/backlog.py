"""How many messages an event holds where many wait, with default arguments.

``python -m benchmarks.backlog`` lets each kind of source have a backlog, and stores events as Airflow does: one by one,
fifty a second, confirmed once a second. Kafka's and FIFO queues' order makes batches of their own for each partition or
group; what is shown here has no order.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger
from benchmarks.pubsub import CONN_ID as GOOGLE
from benchmarks.pubsub import PubSub, own_emulator
from benchmarks.side_by_side import Progress, Source, bodies
from benchmarks.sqs import CONN_ID as AWS
from benchmarks.sqs import Sqs
from services.sqs import SqsServer
from tests.airflow_loop import triggerer, until

MESSAGES = 3_000
STORE_SECONDS = 0.02
CONFIRM_SECONDS = 1.0
WATCHERS = (1, 10)
LIMIT_SECONDS = 300.0


class Directory:
    """Directories, one for each reading."""

    name = "a directory"
    trigger_class = DirectoryFileDeleteTrigger

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count()

    async def fill(self, messages: int) -> Path:
        place = self._folder / f"files-{next(self._numbers)}"
        place.mkdir()
        for number, body in enumerate(bodies(messages)):
            (place / f"{number}.json").write_text(body)
        return place

    async def alone(self, place: Path, progress: Progress) -> None:
        """Nobody's: a directory has no client."""
        raise NotImplementedError

    def arguments(self, place: Path) -> dict[str, Any]:
        return {"directory": str(place), "pattern": "*", "settle_seconds": 0}


async def look(source: Source, watchers: int, messages: int) -> None:
    place = await source.fill(messages)

    def make() -> BrokerEventTrigger:
        return source.trigger_class(**source.arguments(place))

    async with triggerer(store_seconds=STORE_SECONDS, confirm_seconds=CONFIRM_SECONDS) as running:
        started = time.monotonic()
        watching = [running.start(make()) for _ in range(watchers)]
        everything: Callable[[], bool] = lambda: all(len(one.ids) == messages for one in watching)  # noqa: E731
        await until(everything, f"{messages} at each of {watchers} watchers of {source.name}", LIMIT_SECONDS)
        seconds = time.monotonic() - started
        events = sum(len(one.events) for one in watching) / watchers
    print(
        f"| {source.name} | {watchers} | {events:.0f} | {messages / events:.0f} | {messages / seconds:,.0f}/s |",
        flush=True,
    )


async def main(folder: Path, messages: int) -> None:
    print(f"{messages:,} messages wait\n")
    print(
        "| source | watchers | events of each | messages an event | messages a second to each |\n|---|---|---|---|---|"
    )
    with SqsServer(folder) as server, own_emulator(folder) as endpoint:
        os.environ[f"AIRFLOW_CONN_{AWS.upper()}"] = server.connection()
        os.environ[f"AIRFLOW_CONN_{GOOGLE.upper()}"] = '{"conn_type": "google_cloud_platform"}'
        os.environ["PUBSUB_EMULATOR_HOST"] = endpoint
        for source in (Sqs(server), PubSub("Pub/Sub", endpoint, "own"), Directory(folder)):
            for watchers in WATCHERS:
                await look(source, watchers, messages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES)
    os.environ["AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS"] = "1"
    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(Path(root), parser.parse_args().messages))

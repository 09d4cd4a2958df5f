"""A process that runs watchers on a topic until it is killed, and stores their events in a file.

`python -m tests.kafka.process store arguments` with the trigger's arguments as JSON. Every message of an event makes a
line of the store, watcher, partition and offset, and an event counts as stored when its lines are written.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger
from tests.airflow_loop import Watcher, triggerer

WATCHERS = 2


async def main(store: str, arguments: str) -> None:
    file = os.open(store, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(watcher: Watcher, event: TriggerEvent) -> None:
        places = [message["attributes"] for message in event.payload["messages"]]
        lines = "".join(f"{watcher.number} {place['partition']} {place['offset']}\n" for place in places)
        os.write(file, lines.encode())
        watcher.events.clear()

    async with triggerer(confirm_seconds=0.1) as running:
        running.on_event = write
        for _ in range(WATCHERS):
            running.start(KafkaSharedStreamTrigger(**json.loads(arguments)), restart=True)
        print("running", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

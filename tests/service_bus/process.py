"""A triggerer with one watcher in a process of its own, to be killed, or to have an environment of its own.

It takes one argument, a JSON object: `trigger`, the arguments of the trigger; `stored`, the file that stands for the
database, one message a line, durable before its event is confirmed; `confirm`, whether events are ever confirmed. It
ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from tests.airflow_loop import Watcher, triggerer


async def main(given: dict[str, Any]) -> None:
    async with triggerer(store_seconds=0.02) as running:
        if not given["confirm"]:
            running.manager.confirm_persisted = lambda seqs: None  # type: ignore[method-assign, assignment]
        with open(given["stored"], "a") as stored:

            def store(watcher: Watcher, event: TriggerEvent) -> None:
                stored.writelines(json.dumps(message["body"]) + "\n" for message in event.payload["messages"])
                stored.flush()
                os.fsync(stored.fileno())

            running.on_event = store
            running.start(ServiceBusSharedStreamTrigger(**given["trigger"]))
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    asyncio.run(main(json.loads(sys.argv[1])))

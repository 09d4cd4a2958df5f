"""A triggerer with one watcher in a process of its own, to be killed, or to run with fewer rights.

It takes one argument, a JSON object: `trigger`, the arguments of the trigger; `stored`, the file that stands for the
database, one event a line, durable before it is confirmed; `confirm`, whether events are ever confirmed. It ends
when its input does.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger
from tests.airflow_loop import Watcher, triggerer


async def main(given: dict[str, Any]) -> None:
    async with triggerer() as running:
        if not given.get("confirm", True):
            running.manager.confirm_persisted = lambda seqs: None  # type: ignore[method-assign, assignment]
        with open(given["stored"], "a") as stored:

            def store(watcher: Watcher, event: TriggerEvent) -> None:
                messages = event.payload["messages"]
                stored.writelines(json.dumps({"id": message["id"]}) + "\n" for message in messages)
                stored.flush()
                os.fsync(stored.fileno())

            running.on_event = store
            running.start(DirectoryFileDeleteTrigger(**given["trigger"]))
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    asyncio.run(main(arguments))

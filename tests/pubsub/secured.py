"""An adapter on a server with TLS and credentials, in a process of its own: gRPC reads the authorities it trusts once.

It takes one argument, a JSON object with the arguments of the adapter. It accepts a message and says so, one JSON
object a line; then waits for a line of input, tries to accept another, and says what became of that.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from airflow_provider_sharedstream.stream.disposition import Disposition


async def main(given: dict[str, Any]) -> None:
    consumer = PubSubConsumer(**given)
    await consumer.connect()
    found = list(await consumer.receive(2))
    while len(found) < 2:
        found += await consumer.receive(2 - len(found))
    failures = await consumer.settle(Disposition.ACCEPT, found[:1])
    say(body=found[0].body.decode(), failures=len(failures))
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await consumer.settle(Disposition.ACCEPT, found[1:])
    except Exception as error:
        say(kind=type(error).__name__, text=str(error), transient=consumer.is_transient(error))
    await consumer.close()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

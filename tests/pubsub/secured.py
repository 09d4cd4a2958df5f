"""An adapter on a server with TLS and credentials, in a process of its own: gRPC reads the authorities it trusts once.

It takes one argument, a JSON object with the arguments of the adapter, and does what it is told, one word a line:
`accept` the next message, or `receive` until that fails. It says what became of each, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition


async def main(given: dict[str, Any]) -> None:
    consumer = PubSubConsumer(**given)
    await consumer.connect()
    while word := (await asyncio.to_thread(sys.stdin.readline)).strip():
        try:
            found: Sequence[Delivery] = ()
            while word == "receive" or not found:
                found = await consumer.receive(1)
            failures = await consumer.settle(Disposition.ACCEPT, found)
            body = found[0].body
            assert isinstance(body, bytes)
            say(body=body.decode(), failures=len(failures))
        except Exception as error:
            say(kind=type(error).__name__, text=str(error), transient=consumer.is_transient(error))
    await consumer.close()


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))

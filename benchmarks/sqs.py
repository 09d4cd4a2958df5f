"""SQS through the whole machine, next to aioboto3 alone (:mod:`benchmarks.side_by_side`).

``python -m benchmarks.sqs``. The library's side receives ten at a time and deletes them in one call, in as many loops
at once as the adapter may receive in.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import aioboto3

from airflow_provider_sharedstream.brokers.sqs.adapter import PARALLEL_RECEIVES
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from benchmarks.side_by_side import Progress, bodies, compare, options
from services.sqs import SqsServer
from services.sqs_queue import SqsQueue

MESSAGES = 3_000
CONN_ID = "aws_benchmark"


class Sqs:
    """Queues, one for each reading."""

    name = "SQS"
    trigger_class = SqsSharedStreamTrigger

    def __init__(self, server: SqsServer) -> None:
        self._server = server
        self._numbers = itertools.count()

    async def fill(self, messages: int) -> SqsQueue:
        queue = self._server.create_queue(f"benchmark-{next(self._numbers)}", visibility_timeout=120)
        await asyncio.to_thread(queue.send, bodies(messages))
        return queue

    async def alone(self, place: SqsQueue, progress: Progress) -> None:
        session = aioboto3.Session(
            aws_access_key_id="test", aws_secret_access_key="test", region_name=self._server.region
        )
        async with session.client("sqs", endpoint_url=self._server.endpoint_url) as client:
            await asyncio.gather(*(self._loop(client, place, progress) for _ in range(PARALLEL_RECEIVES)))

    async def _loop(self, client: Any, place: SqsQueue, progress: Progress) -> None:
        while progress.arrived < progress.messages:
            answer = await client.receive_message(QueueUrl=place.url, MaxNumberOfMessages=10, WaitTimeSeconds=1)
            found = answer.get("Messages", [])
            progress.arrived += len(found)
            if found:
                entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)]
                done = await client.delete_message_batch(QueueUrl=place.url, Entries=entries)
                assert not done.get("Failed"), done
                progress.settled += len(found)

    def arguments(self, place: SqsQueue) -> dict[str, Any]:
        return {"sqs_queue": place.name, "aws_conn_id": CONN_ID}


def main() -> None:
    given = options(__doc__, MESSAGES)
    with tempfile.TemporaryDirectory() as folder, SqsServer(Path(folder)) as server:
        os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = server.connection()
        print(server.taken)
        asyncio.run(compare(Sqs(server), given.rounds, given.messages))


if __name__ == "__main__":
    main()

"""What the tests of SQS streams share."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from services.sqs_queue import SqsQueue
from tests.sqs.conftest import Sqs


def trigger(sqs: Sqs, queue: SqsQueue, **arguments: Any) -> SqsSharedStreamTrigger:
    return SqsSharedStreamTrigger(queue.name, aws_conn_id=sqs.conn_id, **arguments)


async def send(queue: SqsQueue, bodies: list[Any]) -> None:
    await asyncio.to_thread(queue.send, [json.dumps(body) for body in bodies])


def is_empty(queue: SqsQueue) -> Any:
    async def check() -> bool:
        return (await asyncio.to_thread(queue.depth)).total == 0

    return check

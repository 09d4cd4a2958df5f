"""Short forms of what nearly every test does with the SDK."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

GENEROUS_SECONDS = 20.0


async def send(client: ServiceBusClient, queue: str, *bodies: str, session_id: str | None = None) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages([ServiceBusMessage(body, session_id=session_id) for body in bodies])


async def receive(receiver: ServiceBusReceiver, count: int = 1) -> list[Any]:
    """Exactly so many messages, however many receives it takes.

    The SDK declares as optional what each of them has.
    """
    received: list[Any] = []
    end = time.monotonic() + GENEROUS_SECONDS
    while len(received) < count:
        assert time.monotonic() < end, f"{len(received)} of {count} messages came"
        received += await receiver.receive_messages(max_message_count=count - len(received), max_wait_time=5)
    return received


async def receive_one(receiver: ServiceBusReceiver) -> Any:
    (message,) = await receive(receiver)
    return message


async def nothing_comes(receiver: ServiceBusReceiver) -> bool:
    """Whether a receive of a second comes back empty."""
    return await receiver.receive_messages(max_message_count=1, max_wait_time=1) == []


async def eventually(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within a generous time."""
    end = time.monotonic() + GENEROUS_SECONDS
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.05)
    return True


def text(message: ServiceBusReceivedMessage) -> str:
    return b"".join(message.body).decode()

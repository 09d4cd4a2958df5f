"""What the tests of the emulator do with Google's client libraries."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1.types import StreamingPullRequest, StreamingPullResponse

from services.pubsub_subscription import PubSubSubscription

PROJECT = "project"

Make = Callable[..., PubSubSubscription]


class Stream:
    """One streaming pull of the asynchronous client, whose responses are read as they come."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.responses: asyncio.Queue[StreamingPullResponse] = asyncio.Queue()
        self.reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (response := await self.call.read()) is not grpc.aio.EOF:
            self.responses.put_nowait(response)

    async def send(self, **fields: Any) -> None:
        await self.call.write(StreamingPullRequest(**fields))

    async def response(self) -> StreamingPullResponse:
        return await asyncio.wait_for(self.responses.get(), 30)

    async def messages(self, count: int) -> list[Any]:
        received: list[Any] = []
        while len(received) < count:
            received += (await self.response()).received_messages
        assert len(received) == count
        return received

    async def silent(self, seconds: float = 0.5) -> bool:
        await asyncio.sleep(seconds)
        return self.responses.empty() and not self.reader.done()

    async def end(self) -> BaseException | None:
        await asyncio.wait([self.reader], timeout=30)
        return self.reader.exception()


Open = Callable[..., Awaitable[Stream]]
Subscribe = Callable[[PubSubSubscription], "queue.Queue[Message]"]


async def refusal(opening: Awaitable[Stream]) -> BaseException | None:
    """Why a stream was not to be had: it shows at the call, or at the first read."""
    try:
        stream = await opening
    except exceptions.GoogleAPICallError as error:
        return error
    return await stream.end()


def data(received: list[Any]) -> list[str]:
    return [message.message.data.decode() for message in received]


def ack_ids(received: list[Any]) -> list[str]:
    return [message.ack_id for message in received]

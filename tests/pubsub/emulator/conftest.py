from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import pytest
from google.cloud.pubsub_v1 import SubscriberClient
from google.cloud.pubsub_v1.subscriber.message import Message
from google.pubsub_v1 import SubscriberAsyncClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

from services.pubsub_subscription import PubSubSubscription
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.emulator.clients import PROJECT, Make, Open, Stream, Subscribe


@pytest.fixture(name="emulator")
def fixture_emulator() -> Iterator[PubSubEmulator]:
    with PubSubEmulator(shortest_deadline_seconds=1) as emulator:
        yield emulator


@pytest.fixture(name="make")
def fixture_make(emulator: PubSubEmulator) -> Iterator[Make]:
    """Makes a subscription; takes the arguments of `PubSubSubscription.create`."""
    made: list[PubSubSubscription] = []

    def make(name: str = "orders", dead_letters: bool = False, **settings: Any) -> PubSubSubscription:
        target = make(f"{name}-dead") if dead_letters else None
        subscription = PubSubSubscription(emulator.endpoint, PROJECT, name, target)
        subscription.create(**settings)
        made.append(subscription)
        return subscription

    yield make
    for subscription in made:
        subscription.close()


@pytest.fixture(name="open_stream")
async def fixture_open_stream(emulator: PubSubEmulator) -> AsyncIterator[Open]:
    channel = grpc.aio.insecure_channel(emulator.endpoint)
    client = SubscriberAsyncClient(transport=SubscriberGrpcAsyncIOTransport(channel=channel))
    streams: list[Stream] = []

    async def open_stream(subscription: PubSubSubscription, **fields: Any) -> Stream:
        stream = Stream(await client.streaming_pull(retry=None, timeout=None))
        streams.append(stream)
        first = {"subscription": subscription.path, "stream_ack_deadline_seconds": 60, "client_id": "test", **fields}
        with contextlib.suppress(asyncio.InvalidStateError):  # over already; the reader has the reason
            await stream.send(**first)
        return stream

    yield open_stream
    for stream in streams:
        stream.call.cancel()
        await asyncio.wait([stream.reader])
    await channel.close()


@pytest.fixture(name="subscribe")
def fixture_subscribe(emulator: PubSubEmulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[Subscribe]:
    """The client library's own subscriber; its messages arrive in a queue."""
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", emulator.endpoint)
    client = SubscriberClient()
    running: list[Any] = []

    def subscribe(subscription: PubSubSubscription) -> queue.Queue[Message]:
        messages: queue.Queue[Message] = queue.Queue()
        running.append(client.subscribe(subscription.path, callback=messages.put))
        return messages

    yield subscribe
    for future in running:
        future.cancel()
        future.result(timeout=60)
    client.close()

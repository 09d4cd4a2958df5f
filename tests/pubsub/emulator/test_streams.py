"""Streams and ordering keys, with the unmodified asynchronous client."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.api_core import exceptions

from services.process import wait_until
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.emulator.clients import Make, Open, ack_ids, data


async def test_a_stream_gets_no_more_than_it_may_hold(emulator: PubSubEmulator, make: Make, open_stream: Open) -> None:
    orders = make()
    orders.send(str(n) for n in range(20))
    stream = await open_stream(orders, max_outstanding_messages=5)
    first = await stream.messages(5)
    await stream.send(modify_deadline_ack_ids=ack_ids(first), modify_deadline_seconds=[30] * 5)
    assert await stream.silent()
    assert emulator.depth(orders.path) == (15, 5)
    await stream.send(ack_ids=ack_ids(first[:3]))
    assert data(await stream.messages(3)) == ["5", "6", "7"]
    orders.acknowledge(first[3:])
    assert data(await stream.messages(2)) == ["8", "9"]


async def test_a_stream_gets_no_more_bytes_than_it_may_hold(make: Make, open_stream: Open) -> None:
    orders = make()
    orders.send(["x" * 1000] * 10)
    stream = await open_stream(orders, max_outstanding_bytes=2500)
    first = await stream.messages(3)
    assert await stream.silent()
    await stream.send(ack_ids=ack_ids(first))
    await stream.messages(3)


async def test_a_stream_ends_well_when_the_client_has_no_more_to_say(
    emulator: PubSubEmulator, make: Make, open_stream: Open
) -> None:
    orders = make()
    stream = await open_stream(orders)
    assert await asyncio.to_thread(wait_until, lambda: emulator.open_streams == 1, limit_seconds=30)
    await stream.call.done_writing()
    assert await stream.end() is None
    assert emulator.open_streams == 0


async def test_a_cancelled_stream_is_gone_and_its_leases_run_on(
    emulator: PubSubEmulator, make: Make, open_stream: Open
) -> None:
    orders = make()
    orders.send(["held"])
    stream = await open_stream(orders)
    await stream.messages(1)
    stream.call.cancel()
    assert await asyncio.to_thread(wait_until, lambda: emulator.open_streams == 0, limit_seconds=30)
    assert emulator.depth(orders.path) == (0, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_outstanding_messages": 5},
        {"subscription": "projects/project/subscriptions/orders"},
        {"modify_deadline_ack_ids": ["a", "b"], "modify_deadline_seconds": [1]},
        {"ack_ids": ["malformed"]},
        {"stream_ack_deadline_seconds": 601},
    ],
)
async def test_a_wrong_request_ends_the_stream(make: Make, open_stream: Open, fields: dict[str, Any]) -> None:
    stream = await open_stream(make())
    await stream.send(**fields)
    assert isinstance(await stream.end(), exceptions.InvalidArgument)


async def test_a_failed_message_of_a_key_is_repeated_with_all_that_follow(make: Make, open_stream: Open) -> None:
    orders = make(ordered=True)
    orders.send((f"a{n}" for n in range(6)), ordering_key="a")
    orders.send((f"b{n}" for n in range(2)), ordering_key="b")
    stream = await open_stream(orders)
    first = await stream.messages(8)
    assert sorted(data(first)) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1"]
    by_data = dict(zip(data(first), ack_ids(first), strict=True))
    await stream.send(
        ack_ids=[by_data["a0"], by_data["a4"]],
        modify_deadline_ack_ids=[by_data["a2"]],
        modify_deadline_seconds=[0],
    )
    assert data(await stream.messages(4)) == ["a2", "a3", "a4", "a5"]
    assert await stream.silent()


async def test_a_key_belongs_to_one_stream_while_something_of_it_is_out(make: Make, open_stream: Open) -> None:
    orders = make(ordered=True)
    orders.send(["a0"], ordering_key="a")
    one = await open_stream(orders)
    (a0,) = await one.messages(1)
    two = await open_stream(orders, max_outstanding_messages=1)
    orders.send(["b0"], ordering_key="b")
    # Either may have b; when both have something, a's next one can only go to the first.
    orders.send(["a1"], ordering_key="a")
    orders.send(["c0"], ordering_key="c")
    received = {}
    for stream in (one, two):
        while not stream.responses.empty() or not await stream.silent(0.3):
            for message in (await stream.response()).received_messages:
                received[message.message.data.decode()] = stream
    assert received["a1"] is one
    assert set(received) == {"a1", "b0", "c0"}
    await one.send(ack_ids=[a0.ack_id])

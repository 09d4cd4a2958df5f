"""What is sent comes out, whole, in order, and where it belongs."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
    TransportType,
)
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import MessageSizeExceededError

from tests.emulators.service_bus import Counts, ServiceBusEmulator
from tests.service_bus.emulator.tools import eventually, nothing_comes, receive, receive_one, send, text


def now() -> datetime:
    return datetime.now(timezone.utc)


async def test_everything_a_sender_sets_reaches_the_receiver(client: ServiceBusClient, queue: str) -> None:
    properties: dict[str | bytes, Any] = {
        "text": "ü",
        "number": -(2**31),
        "ratio": 0.5,
        "yes": True,
        "id": uuid.uuid4(),
    }
    before = now() - timedelta(seconds=1)
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(
            ServiceBusMessage(
                b"\x00\xff",
                application_properties=properties,
                content_type="application/octet-stream",
                subject="a subject",
                correlation_id="c-1",
                message_id="m-1",
                to="somewhere",
                reply_to="here",
                session_id="s-1",
                reply_to_session_id="s-2",
                partition_key="s-1",
                time_to_live=timedelta(hours=1),
            )
        )
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert message.locked_until_utc > now()
    assert b"".join(message.body) == b"\x00\xff"
    assert {key.decode(): _plain(value) for key, value in message.application_properties.items()} == properties
    assert message.content_type == "application/octet-stream"
    assert (message.subject, message.correlation_id, message.message_id) == ("a subject", "c-1", "m-1")
    assert (message.to, message.reply_to) == ("somewhere", "here")
    assert (message.session_id, message.reply_to_session_id, message.partition_key) == ("s-1", "s-2", "s-1")
    assert message.time_to_live == timedelta(hours=1)
    assert (message.sequence_number, message.delivery_count) == (1, 0)
    assert before < message.enqueued_time_utc < now() + timedelta(seconds=1)
    assert message.state is ServiceBusMessageState.ACTIVE


@pytest.mark.parametrize(
    ("body", "body_type"),
    [
        ({"value_body": {"a": [1, "two", None], "b": 2.5}}, AmqpMessageBodyType.VALUE),
        ({"value_body": "just text"}, AmqpMessageBodyType.VALUE),
        ({"sequence_body": [[1, 2], ["three"]]}, AmqpMessageBodyType.SEQUENCE),
        ({"data_body": [b"in ", b"two parts"]}, AmqpMessageBodyType.DATA),
    ],
)
async def test_every_kind_of_amqp_body_comes_as_it_was_sent(
    client: ServiceBusClient, queue: str, body: dict[str, Any], body_type: AmqpMessageBodyType
) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(AmqpAnnotatedMessage(**body))
    async with client.get_queue_receiver(queue) as receiver:
        message = (await receive_one(receiver)).raw_amqp_message
    (sent,) = body.values()
    assert message.body_type is body_type
    if body_type is AmqpMessageBodyType.DATA:
        assert list(message.body) == sent
    else:
        assert _plain(message.body if body_type is AmqpMessageBodyType.VALUE else list(message.body)) == sent


async def test_a_batch_is_many_messages_in_order(client: ServiceBusClient, queue: str) -> None:
    async with client.get_queue_sender(queue) as sender:
        batch = await sender.create_message_batch()
        for number in range(250):
            batch.add_message(ServiceBusMessage(str(number), application_properties={"number": number}))
        await sender.send_messages(batch)
    async with client.get_queue_receiver(queue) as receiver:
        messages = await receive(receiver, 250)
    assert [text(message) for message in messages] == [str(number) for number in range(250)]
    assert [message.sequence_number for message in messages] == list(range(1, 251))


async def test_a_large_message_goes_through_in_several_frames(client: ServiceBusClient, queue: str) -> None:
    body = "0123456789" * 20_000
    await send(client, queue, body)
    async with client.get_queue_receiver(queue) as receiver:
        assert text(await receive_one(receiver)) == body


async def test_a_message_over_the_limit_is_refused(client: ServiceBusClient, queue: str) -> None:
    async with client.get_queue_sender(queue) as sender:
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage(b"x" * 300_000))


async def test_receive_and_delete_leaves_nothing_behind(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "a", "b")
    async with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        assert [text(message) for message in await receive(receiver, 2)] == ["a", "b"]
    assert emulator.counts(queue) == Counts(active=0, locked=0, deferred=0, scheduled=0, dead_lettered=0)


async def test_names_of_entities_ignore_case(client: ServiceBusClient, queue: str) -> None:
    await send(client, queue.upper(), "a")
    async with client.get_queue_receiver(queue.title()) as receiver:
        assert text(await receive_one(receiver)) == "a"


async def test_every_subscription_gets_its_own_copy(client: ServiceBusClient, emulator: ServiceBusEmulator) -> None:
    for name in ("first", "second"):
        emulator.create_subscription("orders", name)
    async with client.get_topic_sender("orders") as sender:
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    for name in ("first", "second"):
        async with client.get_subscription_receiver("orders", name) as receiver:
            messages = await receive(receiver, 2)
            assert [text(message) for message in messages] == ["a", "b"]
            await receiver.dead_letter_message(messages[0], reason=f"for {name}")
            await receiver.complete_message(messages[1])
        async with client.get_subscription_receiver(
            "orders", name, sub_queue=ServiceBusSubQueue.DEAD_LETTER
        ) as dead_letters:
            dead = await receive_one(dead_letters)
            assert (text(dead), dead.dead_letter_reason) == ("a", f"for {name}")


async def test_a_scheduled_message_comes_when_it_is_due(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_sender(queue) as sender:
        due = now() + timedelta(seconds=5)
        first, second = await sender.schedule_messages([ServiceBusMessage("later"), ServiceBusMessage("never")], due)
        await sender.send_messages(ServiceBusMessage("also later", scheduled_enqueue_time_utc=due))
        await sender.cancel_scheduled_messages(second)
    assert emulator.counts(queue).scheduled == 2
    async with client.get_queue_receiver(queue) as receiver:
        (peeked, _) = await receiver.peek_messages(5)
        assert (peeked.sequence_number, peeked.state) == (first, ServiceBusMessageState.SCHEDULED)
        messages = await receive(receiver, 2)
    assert [text(message) for message in messages] == ["later", "also later"]
    assert all(message.enqueued_time_utc >= due - timedelta(milliseconds=1) for message in messages)


async def test_peeking_shows_messages_and_locks_none(client: ServiceBusClient, queue: str) -> None:
    await send(client, queue, "a", "b", "c")
    async with client.get_queue_receiver(queue) as receiver:
        assert [text(message) for message in await receiver.peek_messages(10, sequence_number=2)] == ["b", "c"]
        assert len(await receive(receiver, 3)) == 3
        assert await receiver.peek_messages(10, sequence_number=99) == []


@pytest.mark.parametrize("buried", [True, False])
async def test_a_message_does_not_outlive_its_time(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator, buried: bool
) -> None:
    queue = make_queue(time_to_live_seconds=0.5, dead_letter_expired=buried)
    await send(client, queue, "a")
    assert await eventually(lambda: emulator.counts(queue).active == 0)
    assert emulator.counts(queue).dead_lettered == buried
    async with client.get_queue_receiver(queue) as receiver:
        assert await nothing_comes(receiver)


async def test_receivers_that_wait_get_equal_shares(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    async def send_when_both_wait() -> None:
        assert await eventually(lambda: emulator.statistics().receivers == before + 2)
        await asyncio.sleep(0.5)
        await send(client, queue, *map(str, range(10)))

    before = emulator.statistics().receivers
    async with client.get_queue_receiver(queue) as first, client.get_queue_receiver(queue) as second:
        *shares, _ = await asyncio.gather(receive(first, 5), receive(second, 5), send_when_both_wait())
    assert sorted(int(text(message)) for share in shares for message in share) == list(range(10))


async def test_websockets_are_an_entrance_too(emulator: ServiceBusEmulator, queue: str) -> None:
    port = emulator.open_websocket()
    async with ServiceBusClient.from_connection_string(
        emulator.connection_string(),
        transport_type=TransportType.AmqpOverWebsocket,
        custom_endpoint_address=f"sb://127.0.0.1:{port}",
        retry_total=0,
    ) as client:
        before = emulator.statistics()
        await send(client, queue, "a", "b")
        async with client.get_queue_receiver(queue) as receiver:
            for message in await receive(receiver, 2):
                await receiver.complete_message(message)
            assert emulator.drop_connections() > 0
    now = emulator.statistics()
    assert (now.delivered - before.delivered, now.settled - before.settled) == (2, 2)
    assert await eventually(lambda: emulator.statistics().connections == 0)


def _plain(value: Any) -> Any:
    """The SDK leaves texts in AMQP values as bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value

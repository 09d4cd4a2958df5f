"""Locks, and the ways in which a message is settled under one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

from tests.emulators.service_bus import Counts, ServiceBusEmulator
from tests.service_bus.emulator.tools import nothing_comes, receive, receive_one, send, text

EMPTY = Counts(active=0, locked=0, deferred=0, scheduled=0, dead_lettered=0)


def dead_letters_of(client: ServiceBusClient, queue: str) -> ServiceBusReceiver:
    return client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)


async def test_a_completed_message_is_gone(client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        assert emulator.counts(queue).locked == 1
        await receiver.complete_message(message)
    assert emulator.counts(queue) == EMPTY


async def test_an_abandoned_message_comes_again_in_its_place_and_counts(client: ServiceBusClient, queue: str) -> None:
    await send(client, queue, "a", "b", "c")
    async with client.get_queue_receiver(queue) as receiver:
        first, second = await receive(receiver, 2)
        await receiver.abandon_message(second)
        await receiver.abandon_message(first)
        again = await receive(receiver, 3)
        assert [(text(message), message.delivery_count) for message in again] == [("a", 1), ("b", 1), ("c", 0)]
        assert again[0].lock_token != first.lock_token


async def test_what_a_closed_receiver_had_not_settled_stays_locked(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator
) -> None:
    queue = make_queue(lock_seconds=3)
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        await receive_one(receiver)
    assert emulator.counts(queue).locked == 1
    async with client.get_queue_receiver(queue) as receiver:
        assert (await receive_one(receiver)).delivery_count == 1


async def test_what_a_receiver_had_not_shown_is_given_back_when_it_closes(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, *"abcdef")
    async with client.get_queue_receiver(queue, prefetch_count=5) as receiver:
        await receive_one(receiver)
        assert emulator.counts(queue).locked == 6
    assert emulator.counts(queue) == Counts(active=5, locked=1, deferred=0, scheduled=0, dead_lettered=0)
    async with client.get_queue_receiver(queue) as receiver:
        assert (await receive_one(receiver)).delivery_count == 0


async def test_a_deferred_message_comes_only_by_its_number(client: ServiceBusClient, queue: str) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.defer_message(message)
        assert await nothing_comes(receiver)
        (peeked,) = await receiver.peek_messages(sequence_number=1)
        assert peeked.state is ServiceBusMessageState.DEFERRED
        (deferred,) = await receiver.receive_deferred_messages([message.sequence_number])
        assert text(deferred) == "a"
        await receiver.abandon_message(deferred)
        (deferred,) = await receiver.receive_deferred_messages([message.sequence_number])
        await receiver.complete_message(deferred)
        with pytest.raises(MessageNotFoundError):
            await receiver.receive_deferred_messages([message.sequence_number])


async def test_deferred_messages_can_be_received_and_deleted(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        await receiver.defer_message(message)
    assert emulator.counts(queue).deferred == 1
    async with client.get_queue_receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver:
        (deferred,) = await receiver.receive_deferred_messages([message.sequence_number])
    assert text(deferred) == "a"
    assert emulator.counts(queue) == EMPTY


async def test_a_dead_letter_says_why_and_keeps_what_it_had(client: ServiceBusClient, queue: str) -> None:
    async with client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("a", application_properties={"kind": "order"}, message_id="m"))
    async with client.get_queue_receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="bad", error_description="very bad")
        assert await nothing_comes(receiver)
    async with dead_letters_of(client, queue) as receiver:
        dead = await receive_one(receiver)
        assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("bad", "very bad")
        assert (text(dead), dead.message_id, dead.application_properties[b"kind"]) == ("a", "m", b"order")
        assert await receiver.renew_message_lock(dead) > datetime.now(timezone.utc)
        await receiver.complete_message(dead)
        assert await nothing_comes(receiver)


async def test_a_dead_letter_needs_no_reason(client: ServiceBusClient, queue: str) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver))
    async with dead_letters_of(client, queue) as receiver:
        assert (await receive_one(receiver)).dead_letter_reason is None


async def test_a_dead_letter_queue_keeps_what_is_rejected_there(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="first")
    async with dead_letters_of(client, queue) as receiver:
        await receiver.dead_letter_message(await receive_one(receiver), reason="second")
        again = await receive_one(receiver)
        assert (again.dead_letter_reason, again.delivery_count) == ("first", 1)
    assert emulator.counts(queue).dead_lettered == 1


async def test_the_last_delivery_is_followed_by_the_dead_letter_queue(
    client: ServiceBusClient, make_queue: Callable[..., str]
) -> None:
    queue = make_queue(max_delivery_count=2)
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        for count in range(2):
            message = await receive_one(receiver)
            assert message.delivery_count == count
            await receiver.abandon_message(message)
        assert await nothing_comes(receiver)
    async with dead_letters_of(client, queue) as receiver:
        dead = await receive_one(receiver)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.dead_letter_error_description == "Message could not be consumed after 2 delivery attempts."


async def test_a_lock_that_runs_out_gives_the_message_back(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator
) -> None:
    queue = make_queue(lock_seconds=1)
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        first = await receive_one(receiver)
        again = await receive_one(receiver)
        assert (text(again), again.delivery_count) == ("a", 1)
        assert again.lock_token != first.lock_token
        with pytest.raises(MessageLockLostError):
            await receiver.complete_message(first)
        with pytest.raises(MessageLockLostError):
            await receiver.renew_message_lock(first)


async def test_a_renewed_lock_holds(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator
) -> None:
    queue = make_queue(lock_seconds=2)
    await send(client, queue, "a")
    before = emulator.statistics().locks_renewed
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        first_until = message.locked_until_utc
        for _ in range(4):
            assert await nothing_comes(receiver)
            until = await receiver.renew_message_lock(message)
        assert until == message.locked_until_utc > first_until
        assert until > datetime.now(timezone.utc)
        await receiver.complete_message(message)
    assert emulator.statistics().locks_renewed == before + 4
    assert emulator.counts(queue) == EMPTY


SETTLEMENTS: list[Callable[[ServiceBusReceiver, ServiceBusReceivedMessage], Any]] = [
    lambda receiver, message: receiver.complete_message(message),
    lambda receiver, message: receiver.abandon_message(message),
    lambda receiver, message: receiver.defer_message(message),
    lambda receiver, message: receiver.dead_letter_message(message, reason="too late"),
]


async def test_no_settlement_is_taken_once_the_lock_is_lost(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, *map(str, range(len(SETTLEMENTS))))
    async with client.get_queue_receiver(queue) as receiver:
        messages = await receive(receiver, len(SETTLEMENTS))
        assert emulator.expire_locks(queue) == len(SETTLEMENTS)
        for settle, message in zip(SETTLEMENTS, messages, strict=True):
            with pytest.raises(MessageLockLostError):
                await settle(receiver, message)
    assert emulator.counts(queue) == Counts(active=4, locked=0, deferred=0, scheduled=0, dead_lettered=0)


async def test_a_second_receiver_settles_by_lock_token(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    """A settlement of a message of another link goes over the management link: the lock is what counts."""
    await send(client, queue, *map(str, range(len(SETTLEMENTS))))
    async with client.get_queue_receiver(queue) as receiver:
        messages = await receive(receiver, len(SETTLEMENTS))
    async with client.get_queue_receiver(queue) as other:
        for settle, message in zip(SETTLEMENTS, messages, strict=True):
            await settle(other, message)
    assert emulator.counts(queue) == Counts(active=1, locked=0, deferred=1, scheduled=0, dead_lettered=1)
    async with dead_letters_of(client, queue) as dead_letters:
        assert (await receive_one(dead_letters)).dead_letter_reason == "too late"

"""Sessions: one receiver at a time, in order, until the session's lock is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tests.emulators.service_bus import ServiceBusEmulator
from tests.service_bus.emulator.tools import eventually, nothing_comes, receive, receive_one, send, text


async def test_a_named_session_brings_its_own_messages_in_order(client: ServiceBusClient, session_queue: str) -> None:
    for number in range(3):
        await send(client, session_queue, f"red {number}", session_id="red")
        await send(client, session_queue, f"blue {number}", session_id="blue")
    async with client.get_queue_receiver(session_queue, session_id="blue") as receiver:
        session: Any = receiver.session
        assert session.session_id == "blue"
        assert session.locked_until_utc > datetime.now(timezone.utc)
        messages = await receive(receiver, 3)
        assert [text(message) for message in messages] == ["blue 0", "blue 1", "blue 2"]
        assert {message.session_id for message in messages} == {"blue"}
        for message in messages[1:]:
            await receiver.complete_message(message)
        await receiver.abandon_message(messages[0])
        assert text(await receive_one(receiver)) == "blue 0"
        assert await nothing_comes(receiver)


async def test_the_next_session_is_the_one_that_waited_longest(client: ServiceBusClient, session_queue: str) -> None:
    await send(client, session_queue, "a", session_id="first")
    await send(client, session_queue, "b", session_id="second")

    def next_session() -> object:
        return client.get_queue_receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=2)

    async with next_session() as one, next_session() as two:  # type: ignore[attr-defined]
        assert (one.session.session_id, two.session.session_id) == ("first", "second")
        assert (text(await receive_one(one)), text(await receive_one(two))) == ("a", "b")
        with pytest.raises(OperationTimeoutError):
            await next_session().__aenter__()  # type: ignore[attr-defined]


async def test_a_receiver_waits_for_a_session_to_come(client: ServiceBusClient, session_queue: str) -> None:
    waiting = client.get_queue_receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=15)
    opening = asyncio.create_task(waiting.__aenter__())
    await asyncio.sleep(1.5)
    assert not opening.done()
    await send(client, session_queue, "a", session_id="late")
    async with await opening as receiver:
        assert receiver.session.session_id == "late"
        assert text(await receive_one(receiver)) == "a"


async def test_a_session_has_one_receiver_at_a_time(client: ServiceBusClient, session_queue: str) -> None:
    async with client.get_queue_receiver(session_queue, session_id="red"):
        with pytest.raises(SessionCannotBeLockedError):
            await client.get_queue_receiver(session_queue, session_id="red").__aenter__()
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        assert receiver.session.session_id == "red"


async def test_a_closed_receiver_frees_its_session_and_its_messages_uncounted(
    client: ServiceBusClient, session_queue: str
) -> None:
    await send(client, session_queue, "a", "b", session_id="red")
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        await receive_one(receiver)
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        messages = await receive(receiver, 2)
    assert [(text(message), message.delivery_count) for message in messages] == [("a", 0), ("b", 0)]


async def test_a_session_lock_that_runs_out_loses_the_session(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator
) -> None:
    queue = make_queue(requires_session=True, lock_seconds=2)
    await send(client, queue, "a", session_id="red")
    async with client.get_queue_receiver(queue, session_id="red") as receiver:
        message = await receive_one(receiver)
        assert await eventually(lambda: emulator.counts(queue).locked == 0)
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(message)
        with pytest.raises(SessionLockLostError):
            await receiver.session.renew_lock()
    async with client.get_queue_receiver(queue, session_id="red") as receiver:
        again = await receive_one(receiver)
        assert (text(again), again.delivery_count) == ("a", 1)


async def test_a_renewed_session_lock_holds_for_all_of_its_messages(
    client: ServiceBusClient, make_queue: Callable[..., str], emulator: ServiceBusEmulator
) -> None:
    queue = make_queue(requires_session=True, lock_seconds=2)
    await send(client, queue, "a", "b", session_id="red")
    async with client.get_queue_receiver(queue, session_id="red") as receiver:
        messages = await receive(receiver, 2)
        for _ in range(4):
            await asyncio.sleep(1)
            session: Any = receiver.session
            until = await session.renew_lock()
            assert until == session.locked_until_utc > datetime.now(timezone.utc)
        for message in messages:
            await receiver.complete_message(message)
    assert emulator.counts(queue).active == emulator.counts(queue).locked == 0


async def test_a_session_keeps_a_state(client: ServiceBusClient, session_queue: str) -> None:
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        assert await receiver.session.get_state() is None
        await receiver.session.set_state("half way")
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        assert await receiver.session.get_state() == b"half way"
        await receiver.session.set_state(None)
        assert await receiver.session.get_state() is None


@pytest.mark.parametrize("how", ["lose_session", "expire_locks"])
async def test_a_session_taken_away_by_order(
    client: ServiceBusClient, session_queue: str, emulator: ServiceBusEmulator, how: str
) -> None:
    await send(client, session_queue, "a", "b", session_id="red")
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        first, second = await receive(receiver, 2)
        await receiver.complete_message(first)
        taken = (
            emulator.lose_session(session_queue, "red")
            if how == "lose_session"
            else emulator.expire_locks(session_queue)
        )
        assert taken == 1
        with pytest.raises(SessionLockLostError):
            await receiver.complete_message(second)
    assert not emulator.lose_session(session_queue, "red")
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        again = await receive_one(receiver)
    assert (text(again), again.delivery_count) == ("b", 1)


async def test_a_receive_on_a_lost_session_says_so(
    client: ServiceBusClient, session_queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        receiving = asyncio.create_task(receiver.receive_messages(max_message_count=1, max_wait_time=15))
        await asyncio.sleep(0.5)
        assert emulator.lose_session(session_queue, "red")
        with pytest.raises(SessionLockLostError):
            await receiving


async def test_deferred_messages_and_dead_letters_of_a_session(client: ServiceBusClient, session_queue: str) -> None:
    await send(client, session_queue, "a", "b", session_id="red")
    async with client.get_queue_receiver(session_queue, session_id="red") as receiver:
        first, second = await receive(receiver, 2)
        await receiver.defer_message(first)
        (deferred,) = await receiver.receive_deferred_messages(first.sequence_number)
        assert (text(deferred), deferred.session_id) == ("a", "red")
        await receiver.complete_message(deferred)
        await receiver.dead_letter_message(second, reason="bad")
    async with client.get_queue_receiver(session_queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        dead = await receive_one(receiver)
    assert (text(dead), dead.session_id, dead.dead_letter_reason) == ("b", "red", "bad")


async def test_a_message_without_a_session_is_refused(
    client: ServiceBusClient, session_queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_sender(session_queue) as sender:
        with pytest.raises(ServiceBusError, match="SessionId was not set"):
            await sender.send_messages([ServiceBusMessage("a", session_id="red"), ServiceBusMessage("b")])
    assert emulator.counts(session_queue).active == 0


async def test_eight_sessions_side_by_side_keep_their_order(client: ServiceBusClient, session_queue: str) -> None:
    names = [f"session-{number}" for number in range(8)]
    async with client.get_queue_sender(session_queue) as sender:
        for number in range(5):
            await sender.send_messages([ServiceBusMessage(str(number), session_id=name) for name in names])

    async def read(name: str) -> list[str]:
        async with client.get_queue_receiver(session_queue, session_id=name) as receiver:
            messages = await receive(receiver, 5)
            for message in messages:
                await receiver.complete_message(message)
            return [text(message) for message in messages]

    assert await asyncio.gather(*map(read, names)) == [["0", "1", "2", "3", "4"]] * 8


async def test_sessions_with_messages_or_state_are_listed(client: ServiceBusClient, session_queue: str) -> None:
    await send(client, session_queue, "a", session_id="with a message")
    async with client.get_queue_receiver(session_queue, session_id="with a state") as receiver:
        await receiver.session.set_state(b"x")
    async with client.get_queue_receiver(session_queue, session_id="empty"):
        pass
    listed = [name async for name in client.list_queue_sessions(session_queue)]
    assert listed == ["with a message", "with a state"]

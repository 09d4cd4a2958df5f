"""What a test can order to go wrong, and what it can count."""

from __future__ import annotations

import asyncio
import socket

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    ServiceBusConnectionError,
    ServiceBusServerBusyError,
)

from tests.emulators.service_bus import QueueOptions, ServiceBusEmulator
from tests.emulators.service_bus.refusals import MESSAGE_LOCK_LOST
from tests.service_bus.emulator.tools import eventually, receive, receive_one, send, text


def reconnecting(emulator: ServiceBusEmulator) -> ServiceBusClient:
    """The SDK with its own retries, soon after each other."""
    return ServiceBusClient.from_connection_string(
        emulator.connection_string(), retry_total=10, retry_mode="fixed", retry_backoff_factor=0.2
    )


async def test_links_and_connections_are_counted(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    before = emulator.statistics()
    await send(client, queue, "a", "b")
    async with client.get_queue_receiver(queue) as receiver:
        for message in await receive(receiver, 2):
            await receiver.complete_message(message)
        now = emulator.statistics()
        assert now.connections_opened - before.connections_opened == 2
        assert (now.senders_opened - before.senders_opened, now.receivers_opened - before.receivers_opened) == (1, 1)
        assert (now.delivered - before.delivered, now.settled - before.settled) == (2, 2)
        assert now.receivers == before.receivers + 1
    assert await eventually(lambda: emulator.statistics().connections == before.connections)
    assert emulator.statistics().receivers == before.receivers


async def test_dropped_connections_are_opened_again_by_the_sdk(emulator: ServiceBusEmulator, queue: str) -> None:
    async with reconnecting(emulator) as client, client.get_queue_receiver(queue) as receiver:
        before = emulator.statistics()
        assert emulator.drop_connections() == before.connections > 0
        assert await eventually(lambda: emulator.statistics().connections == 0)
        await send(client, queue, "a")
        assert text(await receive_one(receiver)) == "a"
        assert emulator.statistics().receivers_opened == before.receivers_opened + 1


async def test_without_retries_a_dropped_connection_is_an_error(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_receiver(queue) as receiver:
        receiving = asyncio.create_task(receiver.receive_messages(max_message_count=1, max_wait_time=15))
        await asyncio.sleep(0.5)
        emulator.drop_connections()
        with pytest.raises(ServiceBusConnectionError):
            await receiving


async def test_a_server_that_is_down_refuses_and_keeps_its_messages(emulator: ServiceBusEmulator, queue: str) -> None:
    async with reconnecting(emulator) as client:
        await send(client, queue, "a")
        emulator.go_down()
        try:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", emulator.port), timeout=5)
            opening = asyncio.create_task(client.get_queue_receiver(queue).__aenter__())
            await asyncio.sleep(1)
            assert not opening.done()
        finally:
            emulator.come_up()
        async with await opening as receiver:
            assert text(await receive_one(receiver)) == "a"


async def test_locks_run_out_while_the_server_is_down(emulator: ServiceBusEmulator) -> None:
    emulator.create_queue("down", QueueOptions(lock_seconds=1))
    async with reconnecting(emulator) as client:
        await send(client, "down", "a")
        async with client.get_queue_receiver("down") as receiver:
            await receive_one(receiver)
            emulator.go_down()
            try:
                assert await eventually(lambda: emulator.counts("down").locked == 0)
            finally:
                emulator.come_up()
            assert (await receive_one(receiver)).delivery_count == 1


async def test_a_settlement_that_is_ordered_to_fail_changes_nothing(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        message = await receive_one(receiver)
        emulator.fail_settlements(1)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.complete_message(message)
        assert emulator.counts(queue).locked == 1


async def test_a_settlement_can_fail_with_any_condition(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "a", "b", "c")
    async with client.get_queue_receiver(queue) as receiver:
        first, second, third = await receive(receiver, 3)
        emulator.fail_settlements(2, MESSAGE_LOCK_LOST)
        for message in (first, second):
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)
        await receiver.complete_message(third)
    assert emulator.counts(queue).locked == 2


async def test_a_settlement_whose_answer_is_lost_was_carried_out(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    await send(client, queue, "refused", "unanswered")
    async with client.get_queue_receiver(queue) as receiver:
        refused, unanswered = await receive(receiver, 2)
        emulator.lose_settlement_replies(1)
        emulator.fail_settlements(1)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.complete_message(refused)
        with pytest.raises(ServiceBusConnectionError):
            await receiver.complete_message(unanswered)
    counts = emulator.counts(queue)
    assert (counts.active, counts.locked) == (0, 1)


async def test_faults_are_called_off(client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator) -> None:
    await send(client, queue, "a", "b")
    async with client.get_queue_receiver(queue) as receiver:
        first, second = await receive(receiver, 2)
        emulator.fail_settlements(3)
        emulator.lose_settlement_replies(2)
        with pytest.raises(ServiceBusServerBusyError):
            await receiver.complete_message(first)
        assert emulator.forget_faults() == 4
        await receiver.complete_message(second)
    assert emulator.forget_faults() == 0


async def test_idle_links_are_detached_and_their_connections_stay(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_receiver(queue) as receiver:
        before = emulator.statistics()
        assert emulator.detach_links(queue) == 1
        with pytest.raises(ServiceBusConnectionError, match="IdleTimerExpired"):
            await receiver.receive_messages(max_message_count=1, max_wait_time=15)
        assert emulator.statistics().connections_opened == before.connections_opened
    async with reconnecting(emulator) as client, client.get_queue_receiver(queue) as receiver:
        emulator.detach_links()
        await send(client, queue, "a")
        assert text(await receive_one(receiver)) == "a"


async def test_all_locks_can_be_let_lapse(client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator) -> None:
    await send(client, queue, "a", "b")
    async with client.get_queue_receiver(queue) as receiver:
        await receive(receiver, 2)
        assert emulator.expire_locks() >= 2
        assert [message.delivery_count for message in await receive(receiver, 2)] == [1, 1]
    assert emulator.expire_locks(queue) == 2


def test_an_unknown_order_is_refused(emulator: ServiceBusEmulator) -> None:
    with pytest.raises(RuntimeError, match="no order 'explode'"):
        emulator.order("explode")
    with pytest.raises(RuntimeError, match="no order '_links'"):
        emulator.order("_links")


async def test_what_is_not_amqp_is_cut_off(emulator: ServiceBusEmulator, client: ServiceBusClient, queue: str) -> None:
    with socket.create_connection(("127.0.0.1", emulator.port), timeout=10) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: nobody\r\n\r\n" * 10)
        while stranger.recv(4096):
            pass
    await send(client, queue, "a")
    async with client.get_queue_receiver(queue) as receiver:
        assert text(await receive_one(receiver)) == "a"

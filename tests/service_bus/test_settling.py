"""Settlements and locks of an adapter without the machine: many at once, beside a receive, on a slow network."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Sequence
from typing import Any

import psutil
import pytest
from azure.servicebus.exceptions import ServiceBusError

from airflow_provider_sharedstream.brokers.service_bus import link as service_bus_link
from airflow_provider_sharedstream.brokers.service_bus import settling as service_bus_settling
from airflow_provider_sharedstream.brokers.service_bus.adapter import ServiceBusConsumer
from airflow_provider_sharedstream.brokers.service_bus.delivery import dead_letter_note
from airflow_provider_sharedstream.brokers.service_bus.link import Link
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from tests.airflow_loop import until
from tests.conformance.suite import receive_all
from tests.emulators.service_bus import RemoteControl
from tests.service_bus.conftest import ServiceBus, send


async def connected(queue: str) -> ServiceBusConsumer:
    consumer = ServiceBusConsumer(queue, azure_service_bus_conn_id=ServiceBus.conn_id)
    await consumer.connect()
    return consumer


def threads_but_for_pools() -> int:
    """Threads now, without those that asyncio keeps for blocking calls."""
    return sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())


def connections_to(port: int) -> list[Any]:
    """This process's, to a server on this machine."""
    connections = psutil.Process().net_connections()
    # A proxy in this process has the other end of each.
    return [one for one in connections if one.raddr and one.raddr.port == port and one.status == "ESTABLISHED"]


def numbers(found: Sequence[Delivery]) -> list[int]:
    return sorted(json.loads(delivery.body or b"")["n"] for delivery in found)


async def test_one_lost_lock_among_many_is_found(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(12)])
    consumer, other = await connected(queue), await connected(queue)
    found = await receive_all(consumer, 12)
    before = orders.statistics().locks_renewed
    assert not await consumer.extend_leases(found)
    assert orders.statistics().locks_renewed - before == 12
    # Over another link, which goes by their lock tokens alone, some are given back, unknown to this one.
    assert not await other.settle(Disposition.RELEASE, found[3:5])
    for delivery in found[3:5]:
        delivery.handle.message._settled = False
    assert sorted(await consumer.extend_leases(found), key=id) == sorted(found[3:5], key=id)
    # What the SDK was told of the renewal lets it settle later than the first lock would have.
    failures = await consumer.settle(Disposition.ACCEPT, found)
    assert set(failures) == set(found[3:5])
    assert all(isinstance(error, LeaseLost) for error in failures.values())
    await consumer.close()
    await other.close()


async def test_locks_renewed_together_outlast_the_first(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue(lock_seconds=5)
    await send(service_bus, queue, [{"n": n} for n in range(10)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 10)
    assert consumer.limits.lease_seconds == pytest.approx(5, abs=1)
    for _ in range(3):
        await asyncio.sleep(2.5)
        assert not await consumer.extend_leases(found)
    assert not await consumer.settle(Disposition.ACCEPT, found)
    assert orders.counts(queue).locked == orders.counts(queue).active == 0
    await consumer.close()


async def test_without_what_is_below_the_public_interface(
    service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(20)])
    monkeypatch.setattr(service_bus_link, "renewed_together", _not_there)
    monkeypatch.setattr(service_bus_settling, "keep_from_reopening", lambda *_: False)
    consumer = await connected(queue)
    found = await receive_all(consumer, 20)
    assert not await consumer.extend_leases(found)
    assert not await consumer.settle(Disposition.ACCEPT, found)
    await consumer.close()


async def _not_there(*_: Any) -> bool:
    return False


async def test_what_could_not_be_told_is_not_settled(service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(10)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 10)

    def note(delivery: Delivery, origin: str) -> tuple[str, str]:
        if delivery is found[4]:
            raise KeyError("a mistake")
        return dead_letter_note(delivery, origin)

    monkeypatch.setattr(service_bus_settling, "dead_letter_note", note)
    failures = await consumer.settle(Disposition.DEAD_LETTER, found)
    assert list(failures) == [found[4]]
    assert not consumer.is_transient(failures[found[4]])
    monkeypatch.undo()
    assert not await consumer.settle(Disposition.DEAD_LETTER, [found[4]])
    await consumer.close()


async def test_settlements_do_not_wait_for_a_receive_that_waits(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(100)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 100)
    receiving = asyncio.create_task(consumer.receive(100))
    await asyncio.sleep(1.5)
    started = time.monotonic()
    for start in range(0, 100, 10):
        assert not await consumer.settle(Disposition.ACCEPT, found[start : start + 10])
    # Side by side, as the SDK would do it, it would be 0.2 to 0.4 s each: 20 s at least.
    assert time.monotonic() - started < 10
    await send(service_bus, queue, [{"n": 100}])
    assert numbers(await asyncio.wait_for(receiving, 30)) == [100]
    await consumer.close()


async def test_a_receive_is_not_starved_by_settlements(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(2000)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 2000)
    await send(service_bus, queue, [{"n": 2000}])

    async def settle_all() -> None:
        async def settle(start: int) -> None:
            assert not await consumer.settle(Disposition.ACCEPT, found[start : start + 5])

        # Always several waiting.
        await asyncio.gather(*(settle(start) for start in range(0, 2000, 5)))

    settling = asyncio.create_task(settle_all())
    receiving = asyncio.create_task(consumer.receive(10))
    await asyncio.wait((settling, receiving), return_when=asyncio.FIRST_COMPLETED)
    assert numbers(await receiving) == [2000]
    await settling
    await consumer.close()


async def test_a_server_that_is_far_away_is_told_many_at_once(
    service_bus: ServiceBus, orders: RemoteControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(100)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 100)
    link = found[0].handle.link
    assert isinstance(link, Link)
    at_once = highest = 0
    theirs = link.receiver.complete_message

    async def complete(message: Any) -> None:
        nonlocal at_once, highest
        at_once += 1
        highest = max(highest, at_once)
        try:
            await theirs(message)
        finally:
            at_once -= 1

    monkeypatch.setattr(link.receiver, "complete_message", complete)
    service_bus.proxy.delay_seconds = 0.005
    try:
        for start in (0, 25):
            assert not await consumer.settle(Disposition.ACCEPT, found[start : start + 25])
        assert highest == service_bus_settling.SETTLES_AT_ONCE
        # And none of them is left hanging when the connection breaks under all of them.
        settling = asyncio.create_task(consumer.settle(Disposition.ACCEPT, found[50:]))
        await until(lambda: at_once > 2, "several at once")
        orders.drop_connections()
        failures = await asyncio.wait_for(settling, 30)
        assert failures
        assert all(consumer.is_transient(error) for error in failures.values())
    finally:
        service_bus.proxy.delay_seconds = 0.0
    assert not {
        delivery: error
        for delivery, error in (await consumer.settle(Disposition.ACCEPT, list(failures))).items()
        if not isinstance(error, LeaseLost)
    }
    assert orders.counts(queue).locked == 0
    await consumer.close()


async def test_closed_while_the_network_stalls(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(10)])
    consumer = await connected(queue)
    found = await receive_all(consumer, 10)
    service_bus.proxy.stall()
    try:
        settling = asyncio.create_task(consumer.settle(Disposition.ACCEPT, found))
        await asyncio.sleep(0.5)
        await asyncio.wait_for(consumer.close(), 20)
        failures = await asyncio.wait_for(settling, 10)
        assert set(failures) == set(found)
        assert all(consumer.is_transient(error) for error in failures.values())
        await until(lambda: not connections_to(service_bus.proxy.port), "no connection")
    finally:
        service_bus.proxy.heal()


async def test_nothing_is_left_of_broken_connections(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue()
    # What sends has a thread of its own.
    await send(service_bus, queue, [{"n": 0}])
    consumer = await connected(queue)
    assert not await consumer.settle(Disposition.ACCEPT, await receive_all(consumer, 1))
    await consumer.close()
    tasks, threads = len(asyncio.all_tasks()), threads_but_for_pools()
    consumer = await connected(queue)
    for round in range(8):
        await send(service_bus, queue, [{"n": 10 * round + n} for n in range(1, 11)])
        while True:
            try:
                found = await receive_all(consumer, 10)
                break
            except ServiceBusError:
                # What the machine does.
                await consumer.close()
                await consumer.connect()
        settling = asyncio.create_task(consumer.settle(Disposition.ACCEPT, found))
        await asyncio.sleep(0.002 * (round % 4))
        orders.drop_connections()
        failures = await settling
        again = await consumer.settle(Disposition.ACCEPT, list(failures)) if failures else {}
        assert all(isinstance(error, LeaseLost) for error in again.values())
    await consumer.close()
    assert orders.counts(queue).active == orders.counts(queue).locked == 0
    await until(lambda: len(asyncio.all_tasks()) <= tasks, "no more tasks than before")
    assert threads_but_for_pools() <= threads
    await until(lambda: service_bus.proxy.open == 0, "no connection")
    assert not connections_to(service_bus.proxy.port)

"""The end of a stream: what is decided is told, what isn't is given back, nothing is left over."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_sharedstream.brokers.memory import MemoryConsumer, MemoryQueue
from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities
from airflow_provider_sharedstream.stream.delivery import Batch
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from tests.machine.fakes import FakeConsumer, deliveries, receipt
from tests.machine.running import PRODUCERS, QueueTrigger, assert_at_rest, new_queue, publish, triggerer
from tests.machine.test_outages import troubled_queue
from tests.machine.virtual import in_virtual_time, now, settle_down, until

ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)


def stream_on(consumer: Any, **settings: Any) -> BrokerStreamProducer:
    clock = asyncio.get_running_loop().time
    return BrokerStreamProducer(consumer, StreamSettings(**{"batch_window_seconds": 0.05, **settings}), clock=clock)


async def first_batch(producer: BrokerStreamProducer) -> tuple[Any, Batch]:
    stream = producer.open_stream()
    batch, _ = await stream.__anext__()
    return stream, batch


def names_of_tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]


@in_virtual_time
async def test_what_is_decided_is_told_and_the_rest_given_back_at_once() -> None:
    name, queue = new_queue(lease_seconds=600.0)
    publish(queue, 30)
    producer = stream_on(MemoryConsumer(name), batch_size=10)
    stream, batch = await first_batch(producer)
    receipt(batch).match_all()
    await producer.advance([AdvanceItem(batch, ACKED)])
    await stream.aclose()
    await producer.aclose()
    assert len(queue.messages) == 20
    assert all(stored.holder is None for stored in queue.messages.values()), "the next owner would wait for the lease"
    assert_at_rest(producer, abandoned=True)
    assert not names_of_tasks()


@in_virtual_time
async def test_advances_after_the_stream_has_ended_count() -> None:
    """Airflow drains what is resolved between the end of `open_stream` and `aclose`."""
    name, queue = new_queue(lease_seconds=600.0)
    publish(queue, 10)
    producer = stream_on(MemoryConsumer(name), batch_size=10)
    stream, batch = await first_batch(producer)
    await stream.aclose()
    receipt(batch).match_all()
    await producer.advance([AdvanceItem(batch, ACKED)])
    await producer.aclose()
    assert not queue.messages


@in_virtual_time
async def test_while_settling() -> None:
    """Calls that are under way come to their end, and what failed is tried again."""
    _, queue, consumer = troubled_queue(lease_seconds=600.0)
    tries = 0

    async def slow(disposition: Disposition) -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(1.0)
        if tries <= 3:
            raise ConnectionResetError

    consumer.on["settle"] = slow
    publish(queue, 50)
    producer = stream_on(consumer, batch_size=50)
    stream, batch = await first_batch(producer)
    receipt(batch).match_all()
    await producer.advance([AdvanceItem(batch, ACKED)])
    await asyncio.sleep(0.5)
    await stream.aclose()
    await producer.aclose()
    assert not queue.messages
    assert_at_rest(producer)


@pytest.mark.parametrize("what", ["settle", "close", "receive", "connect"])
@in_virtual_time
async def test_an_adapter_that_hangs_holds_it_up_for_seconds_only(what: str) -> None:
    _, queue, consumer = troubled_queue(lease_seconds=600.0)
    publish(queue, 5)
    producer = stream_on(consumer, batch_size=50, close_deadline_seconds=8.0)

    async def hangs(*_: Any) -> None:
        await asyncio.sleep(1e9)

    if what == "connect":
        consumer.on[what] = hangs
        stream: Any = producer.open_stream()
        waiting = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    else:
        stream, batch = await first_batch(producer)
        consumer.on[what] = hangs
        await asyncio.sleep(2)
        receipt(batch).match_all()
        await producer.advance([AdvanceItem(batch, ACKED)])
    started = now()
    await stream.aclose()
    await producer.aclose()
    assert now() - started <= 25
    await asyncio.sleep(10)
    assert not names_of_tasks()
    assert not SourceClaim._claims


@in_virtual_time
async def test_twice_and_before_it_was_opened() -> None:
    name, _ = new_queue()
    producer = stream_on(MemoryConsumer(name))
    await producer.aclose()
    await producer.aclose()
    producer = stream_on(MemoryConsumer(name))
    stream = producer.open_stream()
    waiting = asyncio.ensure_future(stream.__anext__())
    await settle_down()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await asyncio.gather(producer.aclose(), producer.aclose())
    assert not names_of_tasks()


@pytest.mark.parametrize("moment", [0.0, 0.1, 0.6, 1.2])
@in_virtual_time
async def test_cancelled_it_goes_on(moment: float) -> None:
    """A triggerer that stops may cancel a trigger twice: a stream that is left half closed would let no other start."""
    name, queue, consumer = troubled_queue(lease_seconds=600.0)

    async def slow(*_: Any) -> None:
        await asyncio.sleep(0.5)

    consumer.on["settle"] = consumer.on["close"] = slow
    publish(queue, 20)
    async with triggerer() as running:
        running.storing.clear()
        watcher = running.start(QueueTrigger(name))
        await until(lambda: PRODUCERS.get(name) and len(PRODUCERS[name][-1].holdings.budget) == 20)
        assert watcher.task is not None
        for _ in range(2):
            watcher.task.cancel()
            await asyncio.sleep(moment)
        await asyncio.gather(watcher.task, return_exceptions=True)
        await asyncio.sleep(20)
        assert not SourceClaim._claims, "the next stream on this source would wait for ever"
        left = [task for task in names_of_tasks() if task.startswith(("sharedstream", "settle", "shared-stream"))]
        assert not left
        assert all(stored.holder is None for stored in queue.messages.values())
        running.storing.set()
        after = running.start(QueueTrigger(name))
        await until(lambda: not queue.messages)
        assert len(after.ids) == 20


@in_virtual_time
async def test_a_hundred_times_leaves_nothing() -> None:
    name, queue = new_queue(lease_seconds=600.0)

    async def once() -> None:
        async with triggerer() as running:
            publish(queue, 3)
            watcher = running.start(QueueTrigger(name))
            await until(lambda: len(watcher.ids) >= 3)
            await until(lambda: not queue.messages)

    await once()
    gc.collect()
    threads = threading.active_count()
    for _ in range(100):
        await once()
    assert not names_of_tasks()
    assert threading.active_count() <= threads
    assert not SourceClaim._claims
    for producer in PRODUCERS.pop(name):
        assert_at_rest(producer)
    del producer
    # Filters that were cancelled are closed when they are collected.
    gc.collect()
    await settle_down()
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) is Cohort and name in str(thing.key)]


@in_virtual_time
async def test_a_broker_that_is_away_does_not_keep_it_open() -> None:
    name, queue = new_queue(lease_seconds=600.0)
    publish(queue, 30)
    async with triggerer() as running:
        running.storing.clear()
        running.start(QueueTrigger(name))
        await until(lambda: PRODUCERS.get(name) and len(PRODUCERS[name][-1].holdings.budget) == 30)
        MemoryQueue.reachable = False
        started = now()
    assert now() - started <= 20
    MemoryQueue.reachable = True
    assert not SourceClaim._claims


@in_virtual_time
async def test_without_leases_nothing_is_given_back() -> None:
    """What isn't committed comes to the next owner by itself."""
    consumer = FakeConsumer(
        BrokerLimits(receive_batch=10, settle_batch=10), Capabilities(ordered_lanes=True, rewinds=True)
    )
    consumer.waiting = deliveries(10, lane="a")
    producer = stream_on(consumer)
    stream, _ = await first_batch(producer)
    await stream.aclose()
    await producer.aclose()
    assert not consumer.settles
    assert len(producer.holdings.budget) == 0
    assert consumer.closes == 1


@in_virtual_time
async def test_what_a_receive_returns_while_it_is_cancelled_is_given_back() -> None:
    """A message that is in hand at that moment isn't locked until its lease has run out."""
    consumer = FakeConsumer(BrokerLimits(receive_batch=10, settle_batch=10, lease_seconds=600.0))
    some = deliveries(3)

    async def last_moment(most: int) -> Any:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            return some

    consumer.on_receive = last_moment
    producer = stream_on(consumer)
    stream = producer.open_stream()
    waiting = asyncio.ensure_future(stream.__anext__())
    await asyncio.sleep(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await producer.aclose()
    assert consumer.told(Disposition.RELEASE) == some
    assert_at_rest(producer)

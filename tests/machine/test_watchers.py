"""What watchers do and suffer, on Airflow's real shared streams: no message is lost by it."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import reject_shared_stream_event

from airflow_provider_sharedstream.stream.disposition import Disposition
from tests.machine.running import (
    PRODUCERS,
    QueueTrigger,
    assert_at_rest,
    new_queue,
    numbers,
    producer_of,
    publish,
    triggerer,
)
from tests.machine.virtual import in_virtual_time, now, until


@in_virtual_time
async def test_cancelled_while_its_event_is_being_logged() -> None:
    """Airflow counts this as acknowledged, with nothing stored."""
    name, queue = new_queue()
    async with triggerer(log_seconds=5.0) as running:
        watcher = running.start(QueueTrigger(name))
        publish(queue, 1)
        await until(lambda: running.logging == 1, "an event in the log")
        await running.cancel(watcher)
        assert not watcher.events
        assert len(queue.messages) == 1, "accepted, and nowhere stored"
        after = running.start(QueueTrigger(name))
        await until(lambda: numbers(after) == [0], "the message at who comes next")
        await until(lambda: not queue.messages, "it to be accepted then")


@in_virtual_time
async def test_cancelled_so_beside_a_sibling() -> None:
    """The stream goes on, and the message comes again for whoever is there then."""
    name, queue = new_queue()
    async with triggerer(log_seconds=5.0) as running:
        victim = running.start(QueueTrigger(name))
        running.start(QueueTrigger(name))
        publish(queue, 1)
        await until(lambda: running.logging == 2)
        await running.cancel(victim)
        after = running.start(QueueTrigger(name))
        await until(lambda: numbers(after) == [0], "the message at the victim's successor")
        await until(lambda: not queue.messages)


class Raises(QueueTrigger):
    """Raises on every third message, the first two times that it sees it."""

    seen: dict[int, int] = {}

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            for message in batch:
                number = message.body["n"]
                Raises.seen[number] = Raises.seen.get(number, 0) + 1
                if number % 3 == 0 and Raises.seen[number] <= 2:
                    raise RuntimeError(f"{number} for the {Raises.seen[number]}. time")
            yield TriggerEvent({"messages": [message.as_dict() for message in batch]})


@in_virtual_time
async def test_a_filter_that_raises() -> None:
    name, queue = new_queue({"batch_size": 1})
    Raises.seen.clear()
    publish(queue, 9)
    async with triggerer() as running:
        watcher = running.start(Raises(name), restart=True)
        await until(lambda: set(numbers(watcher)) == set(range(9)), "all at the one that raised")
        await until(lambda: not queue.messages)
        assert watcher.restarts >= 6
        assert not queue.dead_letters


class Hangs(QueueTrigger):
    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for _ in shared_stream:
            await asyncio.sleep(1e9)
            yield TriggerEvent({})


@in_virtual_time
async def test_a_watcher_that_hangs_holds_up_no_other() -> None:
    """Airflow fails it after the ack timeout, and never starts it again."""
    name, queue = new_queue({"ack_timeout_seconds": 30.0, "batch_size": 1}, lease_seconds=10.0)
    async with triggerer(ack_timeout=30.0) as running:
        hung = running.start(Hangs(name))
        quick = running.start(QueueTrigger(name))
        publish(queue, 20)
        took = await until(lambda: len(set(numbers(quick))) == 20, "all at the other watcher")
        assert took < 10
        assert len(queue.messages) == 20, "accepted although a watcher is still on it"
        publish(queue, 20, 20)
        await until(lambda: len(set(numbers(quick))) == 40)
        await until(lambda: not queue.messages, "an empty queue, once Airflow has given the one up")
        assert not hung.events
        assert producer_of(name).holdings.sealed[Disposition.RELEASE] >= 20
        await until(lambda: len(producer_of(name).holdings.budget) == 0)


@in_virtual_time
async def test_all_watchers_failed_and_the_queue_is_not_drained() -> None:
    """Somebody is subscribed, nobody is counted (0/0/0): it would take and drop a message every few milliseconds."""
    settings = {"ack_timeout_seconds": 10.0, "batch_size": 1, "max_in_flight": 20}
    name, queue = new_queue(settings, lease_seconds=5.0)
    async with triggerer(ack_timeout=10.0) as running:
        running.start(Hangs(name))
        publish(queue, 500)
        await until(lambda: PRODUCERS.get(name))
        await until(lambda: producer_of(name).holdings.sealed[None] > 0, "the first that nobody heard")
        started = now()
        taken = sum(stored.count for stored in queue.messages.values())
        await asyncio.sleep(1800)
        assert len(queue.messages) == 500
        assert not queue.dead_letters
        # Twenty at a time, with up to a minute in between.
        rate = (sum(stored.count for stored in queue.messages.values()) - taken) / (now() - started)
        assert rate < 3
        fresh = running.start(QueueTrigger(name))
        await until(lambda: len(set(numbers(fresh))) == 500, "all at a watcher that works")
        await until(lambda: not queue.messages)


class AsDocumented(QueueTrigger):
    """As Airflow's documentation shows it: look at each raw event; yield, skip, or reject it."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in shared_stream:
            kinds = {message.body["kind"] for message in event}
            if "poison" in kinds:
                reject_shared_stream_event()
            elif "mine" in kinds:
                mine = [message.as_dict() for message in event if message.body["kind"] == "mine"]
                yield TriggerEvent({"messages": mine})


class RejectsSome(QueueTrigger):
    """Rejects single messages of what the package's filter would see too."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            good = []
            for message in batch:
                if message.body["kind"] == "poison":
                    batch.reject(message, f"{message.body['n']} is poison")
                else:
                    good.append(message)
            if good:
                yield TriggerEvent({"messages": [message.as_dict() for message in good]})


class Decorates(QueueTrigger):
    """Changes what the package's filter yields."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for event in super().filter_shared_stream(shared_stream):
            yield TriggerEvent({**event.payload, "decorated": True})


class Prepares(QueueTrigger):
    """Looks at the stream first, and leaves the rest to the package's filter."""

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async def counted() -> AsyncIterator[Any]:
            async for batch in shared_stream:
                self.seen = getattr(self, "seen", 0) + len(batch)
                yield batch

        async for event in super().filter_shared_stream(counted()):
            yield event


class Mixin:
    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        async for batch in shared_stream:
            yield TriggerEvent({"messages": [message.as_dict() for message in batch]})


class Mixed(Mixin, QueueTrigger):
    """Its filter comes from a class that knows nothing of this package."""


class TestUsersFilters:
    @in_virtual_time
    async def test_as_airflow_documents_it(self) -> None:
        name, queue = new_queue({"batch_size": 1})
        async with triggerer() as running:
            watcher = running.start(AsDocumented(name))
            for kind in ("mine", "other", "poison"):
                publish(queue, 5, kind=kind)
            await until(lambda: not queue.messages)
            assert [body["kind"] for body in watcher.bodies] == ["mine"] * 5
            assert len(queue.dead_letters) == 5
            assert all(b"poison" in (letter.body or b"") for letter in queue.dead_letters)
            assert watcher.restarts == 0

    @in_virtual_time
    async def test_single_messages_of_a_batch(self) -> None:
        name, queue = new_queue()
        async with triggerer() as running:
            watcher = running.start(RejectsSome(name))
            publish(queue, 5, 0, kind="mine")
            publish(queue, 5, 5, kind="poison")
            await until(lambda: not queue.messages)
            assert sorted(numbers(watcher)) == [0, 1, 2, 3, 4]
            reasons = sorted(letter.headers["x-sharedstream-reason"] for letter in queue.dead_letters)
            assert reasons == [f"{n} is poison" for n in range(5, 10)]

    @in_virtual_time
    async def test_through_super(self) -> None:
        name, queue = new_queue()
        async with triggerer() as running:
            watcher = running.start(Decorates(name, match="body.kind == 'mine'"))
            publish(queue, 3, 0, kind="mine")
            publish(queue, 3, 3, kind="other")
            await until(lambda: not queue.messages)
            assert numbers(watcher) == [0, 1, 2]
            assert all(event.payload["decorated"] for event in watcher.events)
            assert producer_of(name).holdings.sealed == {Disposition.ACCEPT: 6}

    @in_virtual_time
    async def test_through_super_with_a_stream_of_its_own(self) -> None:
        name, queue = new_queue()
        async with triggerer() as running:
            watcher = running.start(Prepares(name, match="body.kind == 'mine'"))
            publish(queue, 3, 0, kind="mine")
            publish(queue, 3, 3, kind="other")
            await until(lambda: not queue.messages)
            assert numbers(watcher) == [0, 1, 2]
            assert watcher.trigger.seen == 6  # type: ignore[attr-defined]
            assert producer_of(name).holdings.sealed == {Disposition.ACCEPT: 6}

    @in_virtual_time
    async def test_from_a_mixin(self) -> None:
        name, queue = new_queue()
        async with triggerer() as running:
            watcher = running.start(Mixed(name))
            publish(queue, 3)
            await until(lambda: not queue.messages)
            assert numbers(watcher) == [0, 1, 2]
            assert producer_of(name).holdings.sealed == {Disposition.ACCEPT: 3}

    @in_virtual_time
    async def test_several_on_one_stream(self) -> None:
        """Watchers of different classes share a stream where its arguments are the same."""
        name, queue = new_queue()
        async with triggerer() as running:
            watchers = [running.start(kind(name)) for kind in (QueueTrigger, RejectsSome, Decorates)]
            publish(queue, 4, kind="mine")
            await until(lambda: not queue.messages)
            assert all(sorted(numbers(watcher)) == [0, 1, 2, 3] for watcher in watchers)
            assert len(PRODUCERS[name]) == 1


@in_virtual_time
async def test_one_watchers_trouble_holds_the_stream_until_it_leaves(caplog: pytest.LogCaptureFixture) -> None:
    name, queue = new_queue({"join_grace_seconds": 3.0})
    publish(queue, 10)
    async with triggerer() as running:
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            fine = [running.start(QueueTrigger(name)) for _ in range(10)]
            troubled = running.start(QueueTrigger(name, apply_function="no_such_package.function"))
            for _ in range(5):
                await asyncio.sleep(60)
                fine.append(running.start(QueueTrigger(name)))
            assert all(stored.count == 0 for stored in queue.messages.values()), "taken although one can't judge"
            held = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
            assert 1 <= len(held) <= 6, held
            assert "held" in held[0]
            assert "no_such_package" in held[0]
            assert f"trigger {troubled.number}" in held[0]
            assert troubled.restarts == 0
        await running.cancel(troubled)
        del troubled
        gc.collect()
        await until(lambda: all(sorted(numbers(watcher)) == list(range(10)) for watcher in fine), "all at all others")
        await until(lambda: not queue.messages)


@in_virtual_time
async def test_trouble_that_comes_while_messages_flow_loses_none() -> None:
    name, queue = new_queue({"batch_size": 2})
    async with triggerer() as running:
        fine = running.start(QueueTrigger(name))
        publish(queue, 100)
        await until(lambda: numbers(fine))
        troubled = running.start(QueueTrigger(name, apply_function="no_such_package.function"))
        publish(queue, 100, 100)
        await asyncio.sleep(120)
        assert queue.messages, "taken although one can't judge"
        await running.cancel(troubled)
        gc.collect()
        await until(lambda: set(numbers(fine)) == set(range(200)))
        await until(lambda: not queue.messages)
        assert not queue.dead_letters


@pytest.mark.parametrize("settings", [{"batch_size": 1}, {"max_in_flight": 40}])
@in_virtual_time
async def test_trouble_that_comes_while_the_intake_waits_for_something_else(settings: dict[str, Any]) -> None:
    """For room among what waits, or for permits: it looks again before it takes."""
    name, queue = new_queue(settings)
    publish(queue, 300)
    async with triggerer() as running:
        running.storing.clear()
        fine = running.start(QueueTrigger(name))
        await asyncio.sleep(10)

        def taken() -> int:
            return sum(1 for stored in queue.messages.values() if stored.count) + 300 - len(queue.messages)

        first = taken()
        assert 0 < first < 150
        troubled = running.start(QueueTrigger(name, apply_function="no_such_package.function"))
        running.storing.set()
        await asyncio.sleep(600)
        assert taken() == first
        await running.cancel(troubled)
        gc.collect()
        await until(lambda: set(numbers(fine)) == set(range(300)))


@in_virtual_time
async def test_two_streams_on_one_source(caplog: pytest.LogCaptureFixture) -> None:
    name, queue = new_queue({"join_grace_seconds": 0.0})
    async with triggerer() as running:
        first = running.start(QueueTrigger(name, max_deliveries=5))
        await until(lambda: PRODUCERS.get(name))
        await asyncio.sleep(5)
        publish(queue, 20)
        await until(lambda: len(numbers(first)) == 20, "all at the only stream")
        second = running.start(QueueTrigger(name, max_deliveries=6))
        await asyncio.sleep(5)
        publish(queue, 50, 20)
        await asyncio.sleep(60)
        assert len(numbers(first)) == 20, "the first stream took what the second's watchers never see"
        assert not second.events
        lines = [r.getMessage() for r in caplog.records if "two streams" in r.getMessage()]
        assert 1 <= len(lines) <= 3
        assert lines[0].startswith(f"memory {name} is held, ")
        assert "max_deliveries" in lines[0]
        await running.cancel(first)
        await until(lambda: sorted(numbers(second)) == list(range(20, 70)), "the rest at the second")
        await until(lambda: not queue.messages)


@in_virtual_time
async def test_watchers_start_one_after_another_while_messages_wait() -> None:
    """A triggerer starts its triggers one by one; each must get all that waits."""
    name, queue = new_queue({"join_grace_seconds": 3.0})
    publish(queue, 200)
    async with triggerer() as running:
        watchers = []
        for _ in range(8):
            watchers.append(running.start(QueueTrigger(name)))
            await asyncio.sleep(1.0)
        await until(lambda: not queue.messages)
        for watcher in watchers:
            assert sorted(numbers(watcher)) == list(range(200))


@in_virtual_time
async def test_watchers_are_started_anew_one_after_another_while_messages_flow() -> None:
    """No message is lost for those that stay, and none is accepted that nobody has stored."""
    name, queue = new_queue({"batch_size": 5, "join_grace_seconds": 1.0}, lease_seconds=10.0)
    async with triggerer(log_seconds=0.03, store_seconds=0.01) as running:
        watchers = [running.start(QueueTrigger(name)) for _ in range(4)]
        stays = watchers[0]
        published = 0
        for turn in range(30):
            publish(queue, 10, published)
            published += 10
            await asyncio.sleep(0.7)
            place = 1 + turn % 3
            await running.cancel(watchers[place])
            watchers[place] = running.start(QueueTrigger(name))
        await until(lambda: not queue.messages)
        assert set(numbers(stays)) == set(range(published))
        for watcher in running.watchers:
            assert watcher.failure is None
    for producer in PRODUCERS[name]:
        assert_at_rest(producer)


@in_virtual_time
async def test_the_last_watcher_is_started_anew_again_and_again() -> None:
    """Each time the stream ends and another begins, with whatever was open."""
    name, queue = new_queue({"batch_size": 5}, lease_seconds=10.0)
    async with triggerer(log_seconds=0.03, store_seconds=0.01) as running:
        publish(queue, 500)
        while queue.messages:
            watcher = running.start(QueueTrigger(name))
            await asyncio.sleep(1.5)
            await running.cancel(watcher)
        found = {n for one in running.watchers for n in numbers(one)}
        assert found == set(range(500))
    for producer in PRODUCERS[name]:
        assert_at_rest(producer, abandoned=True)


@in_virtual_time
async def test_a_trigger_tried_alone() -> None:
    name, queue = new_queue()
    publish(queue, 3)
    trigger = QueueTrigger(name)
    events = trigger.run()
    first = await events.__anext__()
    assert [message["body"]["n"] for message in first.payload["messages"]] == [0, 1, 2]
    assert len(queue.messages) == 3, "accepted before it could be stored"
    publish(queue, 1, 3)
    await events.__anext__()
    await until(lambda: len(queue.messages) == 1)
    await events.aclose()  # type: ignore[attr-defined]
    (left,) = queue.messages.values()
    assert left.holder is None, "given back"
    gc.collect()
    from airflow_provider_sharedstream.stream.cohort import cohort_of

    assert len(cohort_of(trigger.shared_stream_key())) == 0

"""The definition of an adapter: every broker runs these tests through its harness.

A test module per broker subclasses `Conformance` and gives it a `harness` fixture. The tests come in two kinds: the
adapter alone, as the machine uses it, and the adapter in the machine, under watchers on Airflow's real
`SharedStreamManager`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import psutil
import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from tests.airflow_loop import LONG_SECONDS, Triggerer, Watcher, repeated, triggerer, until
from tests.conformance.harness import PRODUCERS, Faults, FaultyConsumer, Harness, Source, SourceTrigger, offer

FILTERS = "tests.conformance.filters"


def numbered(count: int, start: int = 0, **more: Any) -> list[bytes]:
    return [json.dumps({"n": number, **more}).encode() for number in range(start, start + count)]


def watch(
    running: Triggerer,
    source: Source,
    faults: Faults | None = None,
    *,
    settings: dict[str, Any] | None = None,
    **common: Any,
) -> Watcher:
    """Start a watcher on a stream of its own on `source`."""
    name = f"s-{uuid.uuid4().hex[:8]}"
    offer(name, lambda: FaultyConsumer(source.consumer(), faults or Faults()), **(settings or {}))
    return running.start(SourceTrigger(name, **common))


def producer_of(watcher: Watcher) -> BrokerStreamProducer:
    return PRODUCERS[watcher.trigger.arguments["name"]]


def number_of(delivery: Delivery) -> int:
    assert delivery.body is not None
    return int(json.loads(delivery.body)["n"])


async def receive_all(consumer: BrokerConsumer, count: int, seconds: float = LONG_SECONDS) -> list[Delivery]:
    """Receive until `count` deliveries are there."""
    found: list[Delivery] = []
    deadline = time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < deadline, f"received {len(found)} of {count} in {seconds:g} s"
        found += await consumer.receive(min(consumer.limits.receive_batch, count - len(found)))
    return found


def emptied(source: Source) -> Callable[[], Awaitable[bool]]:
    async def is_empty() -> bool:
        return await source.pending() == 0

    return is_empty


class Conformance:
    """The suite."""

    @pytest.fixture(autouse=True)
    def _gap(self, request: pytest.FixtureRequest, harness: Harness) -> None:
        name = request.node.originalname
        if name in harness.gaps:
            request.node.add_marker(pytest.mark.xfail(reason=harness.gaps[name], strict=True))

    # The adapter alone.

    async def test_accept_empties_the_source(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(25))
        consumer = source.consumer()
        await consumer.connect()
        found = await receive_all(consumer, 25)
        assert sorted(number_of(d) for d in found) == list(range(25))
        assert len({d.id for d in found}) == 25
        for start in range(0, 25, consumer.limits.settle_batch):
            assert not await consumer.settle(Disposition.ACCEPT, found[start : start + consumer.limits.settle_batch])
        await until(emptied(source), "an empty source")
        await consumer.close()

    async def test_unsettled_returns_with_the_same_ids(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(5))
        first = source.consumer()
        await first.connect()
        ids = {d.id for d in await receive_all(first, 5)}
        await first.close()
        second = source.consumer()
        await second.connect()
        again = await receive_all(second, 5)
        assert {d.id for d in again} == ids
        if second.capabilities.delivery_count:
            assert {d.delivery_count for d in again} == {2}
        await second.close()

    async def test_release_returns_after_its_delay(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(1))
        consumer = source.consumer()
        await consumer.connect()
        (delivery,) = await receive_all(consumer, 1)
        delivery.release_delay_seconds = 3.0 if consumer.capabilities.delayed_release else 0.0
        released_at = time.monotonic()
        assert not await consumer.settle(Disposition.RELEASE, [delivery])
        (again,) = await receive_all(consumer, 1)
        # Brokers that count whole seconds may be early by less than one.
        assert time.monotonic() - released_at > delivery.release_delay_seconds - 1.0
        assert again.id == delivery.id
        if consumer.capabilities.delivery_count:
            assert again.delivery_count == 2
        await consumer.close()

    async def test_a_lost_lease_never_settles(self, harness: Harness) -> None:
        if harness.lease_seconds is None:
            pytest.skip("this broker has no lease")
        source = await harness.source()
        await source.publish(numbered(1))
        first, second = source.consumer(), source.consumer()
        await first.connect()
        await second.connect()
        (mine,) = await receive_all(first, 1)
        await asyncio.sleep(harness.lease_seconds)
        (theirs,) = await receive_all(second, 1)
        assert theirs.id == mine.id
        failures = await first.settle(Disposition.ACCEPT, [mine])
        assert all(isinstance(error, LeaseLost) for error in failures.values())
        theirs.release_delay_seconds = 0.0
        await second.settle(Disposition.RELEASE, [theirs])
        (third,) = await receive_all(second, 1)
        assert third.id == mine.id, "the late acceptance took it from under its new holder"
        await first.close()
        await second.close()

    async def test_settling_twice_does_no_harm(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(3))
        consumer = source.consumer()
        await consumer.connect()
        found = await receive_all(consumer, 3)
        assert not await consumer.settle(Disposition.ACCEPT, found)
        failures = await consumer.settle(Disposition.ACCEPT, found)
        assert all(isinstance(error, LeaseLost) for error in failures.values())
        await until(emptied(source), "an empty source")
        await consumer.close()

    async def test_limits_are_what_the_broker_takes(self, harness: Harness) -> None:
        source = await harness.source()
        consumer = source.consumer()
        await consumer.connect()
        limits = consumer.limits
        count = min(2 * max(limits.receive_batch, limits.settle_batch), 1000)
        await source.publish(numbered(count))
        found: list[Delivery] = []
        while len(found) < count:
            some = await consumer.receive(limits.receive_batch)
            assert len(some) <= limits.receive_batch
            found += some
        for start in range(0, count, limits.settle_batch):
            assert not await consumer.settle(Disposition.ACCEPT, found[start : start + limits.settle_batch])
        await until(emptied(source), "an empty source")
        await consumer.close()

    async def test_a_missing_source_says_what_to_do(self, harness: Harness) -> None:
        consumer = harness.missing()
        with pytest.raises(SourceUnavailable) as caught:
            await consumer.connect()
        assert not consumer.is_transient(caught.value)
        assert consumer.stream in str(caught.value)
        await consumer.close()

    async def test_close_while_receiving_and_twice(self, harness: Harness) -> None:
        source = await harness.source()
        consumer = source.consumer()
        await consumer.close()
        await consumer.connect()
        receiving = asyncio.create_task(consumer.receive(1))
        await asyncio.sleep(0.3)
        await asyncio.wait_for(consumer.close(), LONG_SECONDS)
        await consumer.close()
        done, _ = await asyncio.wait([receiving], timeout=LONG_SECONDS)
        assert done, "receive outlived its connection"
        error = receiving.exception()
        assert error is None or consumer.is_transient(error), error
        await consumer.connect()
        await source.publish(numbered(1))
        assert len(await receive_all(consumer, 1)) == 1
        await consumer.close()

    async def test_cancelled_anywhere_it_loses_nothing(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(10))

        async def session(consumer: BrokerConsumer) -> None:
            await consumer.connect()
            found = await consumer.receive(3)
            for delivery in found:
                delivery.release_delay_seconds = 0.0
            if found:
                await consumer.settle(Disposition.RELEASE, found)

        for moment in [0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3]:
            consumer = source.consumer()
            task = asyncio.create_task(session(consumer))
            if moment:
                await asyncio.sleep(moment)
            else:
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.wait_for(consumer.close(), LONG_SECONDS)
        assert await source.pending() == 10
        consumer = source.consumer()
        await consumer.connect()
        found = await receive_all(consumer, 10, 2 * LONG_SECONDS)
        assert {number_of(d) for d in found} == set(range(10))
        await consumer.close()

    async def test_nothing_leaks_from_twenty_connections(self, harness: Harness) -> None:
        source = await harness.source()

        async def once() -> None:
            await source.publish(numbered(1))
            consumer = source.consumer()
            await consumer.connect()
            found = await receive_all(consumer, 1)
            await consumer.settle(Disposition.ACCEPT, found)
            await consumer.close()

        for _ in range(3):
            await once()
        before = await _settled_census()
        for _ in range(20):
            await once()
        after = await _settled_census()
        assert after.tasks <= before.tasks, "tasks"
        assert after.threads <= before.threads, "threads"
        assert after.sockets <= before.sockets + 1, "sockets"

    # The adapter in the machine.

    async def test_every_message_reaches_every_watcher_once(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            name = f"s-{uuid.uuid4().hex[:8]}"
            offer(name, source.consumer)
            watchers = [running.start(SourceTrigger(name)) for _ in range(5)]
            await source.publish(numbered(100))
            await until(lambda: all(len(w.ids) >= 100 for w in watchers), "100 messages at each of five watchers")
            await until(emptied(source), "an empty source")
            for watcher in watchers:
                assert sorted(body["n"] for body in watcher.bodies) == list(range(100))
                assert watcher.restarts == 0

    async def test_a_dead_letter_keeps_body_and_headers(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            watch(running, source, apply_function=f"{FILTERS}.reject_all")
            await source.publish(numbered(3), headers={"colour": "grün"})
            await until(emptied(source), "an empty source")

            async def three() -> bool:
                return len(await source.dead_letters()) == 3

            await until(three, "three dead letters")
        for number, letter in enumerate(sorted(await source.dead_letters(), key=lambda one: _text(one.body))):
            assert json.loads(_text(letter.body)) == {"n": number}
            assert letter.headers["colour"] == "grün"
            assert "unwanted" in letter.headers["x-sharedstream-reason"].replace("ü", "u")
            assert letter.headers["x-sharedstream-watcher"]
            assert letter.headers["x-sharedstream-delivery-id"]

    async def test_without_a_place_for_dead_letters_nothing_is_dropped(self, harness: Harness) -> None:
        source = await harness.source(dead_letters=False)
        async with triggerer() as running:
            watcher = watch(running, source, apply_function=f"{FILTERS}.reject_all")
            await source.publish(numbered(2))
            await until(lambda: watcher.trigger.arguments["name"] in PRODUCERS)
            producer = producer_of(watcher)
            await until(lambda: producer.holdings.sealed[Disposition.RELEASE] >= 4, "each released twice")
            assert not watcher.events
        assert await source.pending() == 2

    async def test_nobody_listening_lapses(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(4))
        producer = BrokerStreamProducer(source.consumer(), StreamSettings(batch_window_seconds=0.05))
        stream = producer.open_stream()
        ids: Counter[str] = Counter()
        deadline = time.monotonic() + 2 * LONG_SECONDS
        while not (len(ids) == 4 and min(ids.values()) >= 2):
            batch, payload = await asyncio.wait_for(stream.__anext__(), deadline - time.monotonic())
            assert isinstance(batch, Batch)
            ids.update(d.id for d in batch.deliveries)
            await producer.advance([AdvanceItem(payload, AdvanceOutcome(acked=0, failed=0, rejected=0))])
        await stream.aclose()  # type: ignore[attr-defined]
        await producer.aclose()
        assert await source.pending() == 4

    async def test_slow_beyond_three_leases_is_no_repeat(self, harness: Harness) -> None:
        if harness.lease_seconds is None:
            pytest.skip("this broker has no lease")
        source = await harness.source()
        async with triggerer() as running:
            faults = Faults()
            watcher = watch(running, source, faults, apply_function=f"{FILTERS}.slow", apply_timeout_seconds=150)
            await source.publish(numbered(2, seconds=3 * harness.lease_seconds))
            await until(lambda: len(watcher.ids) >= 2, "two messages", LONG_SECONDS + 3 * harness.lease_seconds)
            await until(emptied(source), "an empty source")
            assert sorted(body["n"] for body in watcher.bodies) == [0, 1]

    async def test_slow_without_renewals_is_a_repeat(self, harness: Harness) -> None:
        if harness.lease_seconds is None:
            pytest.skip("this broker has no lease")
        source = await harness.source()
        async with triggerer() as running:
            faults = Faults(renew=False)
            watcher = watch(running, source, faults, apply_function=f"{FILTERS}.slow", apply_timeout_seconds=150)
            await source.publish(numbered(1, seconds=2 * harness.lease_seconds))
            await until(lambda: len(watcher.ids) >= 2, "a repeat", LONG_SECONDS + 5 * harness.lease_seconds)
            assert set(repeated(watcher.ids)) == set(watcher.ids)

    async def test_a_partial_failure_is_tried_again(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            faults = Faults(fail_every=3)
            watcher = watch(running, source, faults)
            await source.publish(numbered(60))
            await until(lambda: len(watcher.ids) >= 60, "60 messages")
            await until(emptied(source), "an empty source")
            assert sorted(set(watcher.ids)) == sorted(watcher.ids), "a settlement that failed made a repeat"

    async def test_every_tenth_rejected_under_load(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            watcher = watch(running, source, Faults(fail_every=7), apply_function=f"{FILTERS}.reject_tenth")
            await asyncio.gather(*(source.publish(numbered(50, start)) for start in range(0, 200, 50)))
            await until(emptied(source), "an empty source")

            async def twenty() -> bool:
                return len(await source.dead_letters()) >= 20

            await until(twenty, "twenty dead letters")
            rejected = sorted(json.loads(_text(letter.body))["n"] for letter in await source.dead_letters())
            assert rejected == list(range(0, 200, 10))
            assert {body["n"] for body in watcher.bodies} == {n for n in range(200) if n % 10}

    async def test_every_tenth_fails_through_reconnects_and_a_restart(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            watcher = watch(running, source, apply_function=f"{FILTERS}.fail_first", on_error="release")
            await source.publish(numbered(60))
            await until(lambda: len(watcher.ids) >= 10, "the first ten")
            await harness.cut()
            await asyncio.sleep(1)
            await harness.heal()
            await source.publish(numbered(60, 60))
            await asyncio.sleep(1)
            await harness.restart()
            await source.publish(numbered(60, 120))
            await until(lambda: {body["n"] for body in watcher.bodies} >= set(range(180)), "all 180", 3 * LONG_SECONDS)
            await until(emptied(source), "an empty source", 2 * LONG_SECONDS)
            assert watcher.restarts == 0

    async def test_the_budget_holds_and_resumes(self, harness: Harness) -> None:
        source = await harness.source()
        await source.publish(numbered(100))
        async with triggerer() as running:
            running.storing.clear()
            watcher = watch(running, source, settings={"max_in_flight": 20, "batch_size": 5})
            await until(lambda: watcher.trigger.arguments["name"] in PRODUCERS)
            producer = producer_of(watcher)
            await until(lambda: len(producer.holdings.budget) >= 15, "a budget in use")
            highest = 0
            for _ in range(20):
                highest = max(highest, len(producer.holdings.budget))
                await asyncio.sleep(0.05)
            assert highest <= 20
            assert not watcher.events
            running.storing.set()
            await until(lambda: len(set(watcher.ids)) >= 100, "all 100")
            await until(emptied(source), "an empty source")

    async def test_a_slow_batch_delays_no_other(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            watcher = watch(running, source, apply_function=f"{FILTERS}.slow", settings={"batch_size": 1})
            quick_name = watcher.trigger.arguments["name"]
            quick = running.start(SourceTrigger(quick_name))
            await source.publish(numbered(1, seconds=20))
            await until(lambda: len(quick.ids) == 1, "the first at the quick watcher")
            await source.publish(numbered(30, 1))
            await until(lambda: len(quick.ids) == 31, "all at the quick watcher")
            assert not watcher.ids, "the slow watcher is not slow"

    async def test_close_flushes_what_is_decided_and_releases_the_rest(self, harness: Harness) -> None:
        source = await harness.source()
        async with triggerer() as running:
            watcher = watch(running, source, settings={"batch_size": 10})
            await source.publish(numbered(30))
            await until(lambda: len(watcher.ids) >= 30, "30 messages")
            await until(emptied(source), "an empty source")
            running.storing.clear()
            await source.publish(numbered(30, 30))
            await until(lambda: len(producer_of(watcher).holdings.budget) > 0, "something in flight")
            await running.cancel(watcher)
            running.storing.set()
            consumer = source.consumer()
            await consumer.connect()
            # At once, long before a lease could have run out.
            found = await receive_all(consumer, 30, LONG_SECONDS)
            assert {number_of(d) for d in found} == set(range(30, 60))
            await consumer.close()

    async def test_a_lane_keeps_its_order(self, harness: Harness) -> None:
        source = await harness.source(ordered=True)
        for start in range(0, 100, 10):
            for key in ("a", "b"):
                await source.publish(numbered(10, start, key=key), key=key)
        async with triggerer() as running:
            watcher = watch(running, source)
            await until(lambda: len(watcher.ids) >= 200, "200 messages")
            for key in ("a", "b"):
                assert [body["n"] for body in watcher.bodies if body["key"] == key] == list(range(100))
            await until(emptied(source), "an empty source")

    async def test_a_lane_is_held_where_it_failed(self, harness: Harness) -> None:
        source = await harness.source(ordered=True)
        await source.publish(numbered(20, 1, key="a"), key="a")
        async with triggerer() as running:
            watcher = watch(
                running,
                source,
                apply_function=f"{FILTERS}.fail_first",
                on_error="release",
                settings={"batch_size": 1},
            )
            await until(lambda: {body["n"] for body in watcher.bodies} >= set(range(1, 21)), "all 20")
            await until(emptied(source), "an empty source")
            numbers = [body["n"] for body in watcher.bodies]
            # 10 fails once: after it has come, everything behind it comes once more, in order.
            at = numbers.index(10)
            assert [n for n in numbers[at:] if n >= 10][:11] == list(range(10, 21))
            # The last time that each message is seen is in order.
            last = [max(i for i, n in enumerate(numbers) if n == number) for number in range(1, 21)]
            assert last == sorted(last)

    async def test_a_held_lane_holds_no_other(self, harness: Harness) -> None:
        source = await harness.source(ordered=True)
        await source.publish(numbered(1, 10, key="a"), key="a")
        async with triggerer() as running:
            watcher = watch(
                running,
                source,
                apply_function=f"{FILTERS}.fail_always",
                match="body.key == 'a'",
                on_error="release",
                settings={"batch_size": 1, "release_delay_seconds": 30.0},
            )
            other = running.start(SourceTrigger(watcher.trigger.arguments["name"], match="body.key == 'b'"))
            await asyncio.sleep(0.5)
            await source.publish(numbered(20, 0, key="b"), key="b")
            await until(lambda: len(other.ids) >= 20, "the other lane")

            async def only_the_held() -> bool:
                return await source.pending() == 1

            await until(only_the_held, "the other lane settled")
            assert [body["n"] for body in other.bodies] == list(range(20))

    async def test_odd_bodies(self, harness: Harness) -> None:
        source = await harness.source()
        odd = [
            "plain text",
            '"a JSON string"',
            "[]",
            "0",
            "null",
            "ünïcödé \U0001f600 漢字",
            "x" * 200_000,
            " leading and trailing ",
            "{broken",
        ]
        async with triggerer() as running:
            watcher = watch(running, source)
            await source.publish([text.encode() for text in odd])
            await until(lambda: len(watcher.ids) >= len(odd), "all bodies")
            await until(emptied(source), "an empty source")
        expected: list[Any] = ["plain text", "a JSON string", [], 0, None, *odd[5:]]
        assert sorted(map(repr, watcher.bodies)) == sorted(map(repr, expected))


class _Census:
    def __init__(self) -> None:
        gc.collect()
        self.tasks = len(asyncio.all_tasks())
        # The loop's own pool grows with the work, up to a bound.
        self.threads = sum(not thread.name.startswith("asyncio_") for thread in threading.enumerate())
        self.sockets = len(psutil.Process().net_connections())


async def _settled_census() -> _Census:
    """Count when what was closed has had time to go."""
    census = _Census()
    for _ in range(20):
        await asyncio.sleep(0.1)
        later = _Census()
        if (later.tasks, later.threads, later.sockets) == (census.tasks, census.threads, census.sockets):
            return later
        census = later
    return census


def _text(body: Any) -> str:
    return body.decode() if isinstance(body, bytes) else str(body)


def bodies(letters: Sequence[Any]) -> list[Any]:
    return [json.loads(_text(letter.body)) for letter in letters]

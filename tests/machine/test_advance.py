"""`advance` decides and never raises: that would fail every watcher of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import pytest
from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities
from airflow_provider_sharedstream.stream.delivery import Batch
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from tests.machine.fakes import FakeConsumer, deliveries, delivery, receipt
from tests.machine.running import assert_at_rest
from tests.machine.virtual import in_virtual_time, until

ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)


@asynccontextmanager
async def stream(
    count: int, lane: str | None = None, capabilities: Capabilities | None = None, **settings: Any
) -> AsyncIterator[tuple[BrokerStreamProducer, FakeConsumer, list[Batch]]]:
    """A stream that has offered `count` messages, two a batch."""
    consumer = FakeConsumer(BrokerLimits(receive_batch=10, settle_batch=10, lease_seconds=600.0), capabilities)
    consumer.waiting = deliveries(count, lane=lane)
    clock = asyncio.get_running_loop().time
    made = {"batch_window_seconds": 0.05, "batch_size": 2, **settings}
    producer = BrokerStreamProducer(consumer, StreamSettings(**made), clock=clock)
    opened: Any = producer.open_stream()
    batches = [(await opened.__anext__())[0] for _ in range(count // 2)]
    yield producer, consumer, batches
    await opened.aclose()
    await producer.aclose()
    assert_at_rest(producer)


def accepted(batch: Batch) -> AdvanceItem:
    receipt(batch).match_all()
    return AdvanceItem(batch, ACKED)


@in_virtual_time
async def test_a_mistake_in_judging_releases_the_batch_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stream(6) as (producer, consumer, batches):
        judge = producer.judge.policy.judge

        class Mistaken:
            release = staticmethod(producer.judge.policy.release)

            def judge(self, batch: Batch, outcome: Any) -> Any:
                if batch is batches[1]:
                    raise ZeroDivisionError
                return judge(batch, outcome)

        producer.judge.policy = Mistaken()  # type: ignore[assignment]
        await producer.advance([accepted(batch) for batch in batches])
        await until(lambda: len(producer.holdings.budget) == 0)
        assert consumer.told(Disposition.RELEASE) == list(batches[1].deliveries)
        assert consumer.told(Disposition.ACCEPT) == [*batches[0].deliveries, *batches[2].deliveries]
        assert caplog.records[-1].exc_info


@pytest.mark.parametrize("rewinds", [False, True])
@in_virtual_time
async def test_a_mistake_in_a_lane_holds_it(rewinds: bool) -> None:
    capabilities = Capabilities(ordered_lanes=True, rewinds=rewinds)
    async with stream(6, "a", capabilities) as (producer, consumer, batches):
        conclude = producer.window.conclude
        mistakes = [ZeroDivisionError()]

        def mistaken(batch: Batch, *, seconds: float) -> None:
            if batch is batches[1] and mistakes:
                raise mistakes.pop()
            conclude(batch, seconds=seconds)

        producer.window.conclude = mistaken  # type: ignore[method-assign]
        await producer.advance([accepted(batch) for batch in batches])
        await until(lambda: len(producer.holdings.budget) == 0)
        assert consumer.told(Disposition.ACCEPT) == list(batches[0].deliveries)
        held = list(batches[1].deliveries)
        assert consumer.told(Disposition.RELEASE) == (held[:1] if rewinds else [*held, *batches[2].deliveries])


@pytest.mark.parametrize(
    "where", ["judge.policy", "judge", "window", "holdings.lanes", "holdings.settlement", "holdings.budget", "intake"]
)
@in_virtual_time
async def test_a_part_that_is_broken_altogether_raises_nothing(where: str) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"{where} is broken")

        def __len__(self) -> int:
            raise RuntimeError(f"{where} is broken")

    async with stream(4, "a", Capabilities(ordered_lanes=True)) as (producer, _, batches):
        *path, part = where.split(".")
        owner = attrgetter(*path)(producer) if path else producer
        whole = getattr(owner, part)
        setattr(owner, part, Broken())
        await producer.advance([accepted(batch) for batch in batches])
        setattr(owner, part, whole)
        # Airflow won't ask again; what was left is given back at the end.
        for batch in batches:
            producer.window.conclude(batch, seconds=0.0)


@in_virtual_time
async def test_nonsense_raises_nothing() -> None:
    async with stream(2) as (producer, _, batches):
        await producer.advance([AdvanceItem(None, ACKED)])
        await producer.advance([AdvanceItem("payload", None)])  # type: ignore[arg-type]
        await producer.advance([AdvanceItem(Batch([delivery()]), ACKED)])
        await producer.advance([])
        await producer.advance([accepted(batches[0])])
        await until(lambda: len(producer.holdings.budget) == 0)
        assert producer.holdings.sealed[Disposition.ACCEPT] == 2


@in_virtual_time
async def test_a_batch_that_is_advanced_twice_is_settled_once() -> None:
    async with stream(4) as (producer, consumer, batches):
        items = [accepted(batch) for batch in batches]
        await producer.advance([*items, *items])
        await until(lambda: len(producer.holdings.budget) == 0)
        await producer.advance(items)
        await asyncio.sleep(10)
        told = [one for _, some in consumer.settles for one in some]
        assert len(told) == len(set(told)) == 4


@in_virtual_time
async def test_what_became_void_while_it_was_with_the_watchers_is_not_settled() -> None:
    async with stream(4, "a", Capabilities(ordered_lanes=True)) as (producer, consumer, batches):
        await producer.lanes_revoked(frozenset({"a"}), 0.0)
        await producer.advance([accepted(batch) for batch in batches])
        await asyncio.sleep(10)
        assert not consumer.settles
        assert producer.holdings.sealed == {None: 4}


@in_virtual_time
async def test_what_is_decided_is_settled_before_a_lane_goes() -> None:
    async with stream(4, "a", Capabilities(ordered_lanes=True)) as (producer, consumer, batches):
        await producer.advance([accepted(batches[0])])
        await producer.lanes_revoked(frozenset({"a"}), 5.0)
        assert consumer.told(Disposition.ACCEPT) == list(batches[0].deliveries)
        await producer.advance([accepted(batches[1])])
        await asyncio.sleep(10)
        assert consumer.told(Disposition.ACCEPT) == list(batches[0].deliveries)


@in_virtual_time
async def test_a_reconnect_makes_void_what_a_broker_can_not_settle_any_more() -> None:
    for durable in (True, False):
        async with stream(4, None, Capabilities(durable_handles=durable)) as (producer, consumer, batches):
            failing = [ConnectionResetError()]

            async def fail_once(most: int) -> Any:
                if failing:  # noqa: B023
                    raise failing.pop()  # noqa: B023
                await asyncio.sleep(1)
                return ()

            consumer.on_receive = fail_once
            await until(lambda: consumer.connects == 2)
            await asyncio.sleep(1)
            await producer.advance([accepted(batch) for batch in batches])
            await until(lambda: len(producer.holdings.budget) == 0)
            assert producer.holdings.sealed == ({Disposition.ACCEPT: 4} if durable else {None: 4})


@in_virtual_time
async def test_nobody_heard_pauses_the_intake_once_a_spell() -> None:
    """Eight batches that nobody heard are one reason to pause, not eight: the pause would be a minute at once."""
    async with stream(16) as (producer, _, batches):
        await producer.advance([AdvanceItem(batch, AdvanceOutcome(0, 0, 0)) for batch in batches])
        assert producer._unheard.failures == 1
        assert producer.intake.paused
        await asyncio.sleep(1.5)
        assert not producer.intake.paused

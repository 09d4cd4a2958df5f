"""Leases are renewed at half life, bounded, and given up when lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.consumer import BrokerLimits
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import never_ending
from tests.machine.fakes import FakeConsumer, deliveries, delivery
from tests.machine.virtual import in_virtual_time, now


class Counts(StreamMetrics):
    def __init__(self) -> None:
        super().__init__("fake", "q")
        self.lost = 0

    def count(self, metric: metrics.Metric, amount: int = 1, **labels: str) -> None:
        if metric is metrics.LEASES_LOST:
            self.lost += amount


class Kept(LeaseKeeper):
    counts: Counts
    broker: FakeConsumer

    def arrive(self, some: Sequence[Delivery]) -> Sequence[Delivery]:
        for one in some:
            one.received_at = now()
        self.track(some)
        return some

    async def settled(self, seconds: float, some: Sequence[Delivery]) -> None:
        await asyncio.sleep(seconds)
        self.forget(some)


@asynccontextmanager
async def keeper(
    lease_seconds: float | None = 30.0, *, max_lease_seconds: float = 660.0, **limits: Any
) -> AsyncIterator[Kept]:
    broker = FakeConsumer(BrokerLimits(receive_batch=10, settle_batch=10, lease_seconds=lease_seconds, **limits))
    counts = Counts()
    made = Kept(broker, max_lease_seconds, counts, clock=asyncio.get_running_loop().time)
    made.counts, made.broker = counts, broker
    loop = asyncio.create_task(never_ending("lease", made.step))
    yield made
    assert not loop.done()
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


@in_virtual_time
async def test_renewed_at_half_life_until_it_is_settled() -> None:
    async with keeper(30.0) as kept:
        (one,) = kept.arrive(deliveries(1))
        times: list[float] = []
        kept.broker.on_extend = lambda some: _noting(times)
        await asyncio.sleep(100.0)
        assert not kept.is_lost(one)
        kept.forget([one])
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        assert len(times) in (6, 7, 8)
        assert all(30 * 0.4 <= gap <= 30 * 0.5 for gap in gaps)
        await asyncio.sleep(100)
        assert len(kept.broker.extensions) == len(times), "renewed after it was settled"


async def _noting(times: list[float]) -> Collection[Delivery]:
    times.append(now())
    return ()


@in_virtual_time
async def test_chunks_of_the_brokers_limit_and_few_of_them() -> None:
    async with keeper(30.0) as kept:
        some = kept.arrive(deliveries(95))
        await kept.settled(20.0, some)
        assert all(len(chunk) <= 10 for chunk in kept.broker.extensions)
        assert sorted(d.id for chunk in kept.broker.extensions for d in chunk) == sorted(d.id for d in some)
        assert len(kept.broker.extensions) <= 20, "jitter doesn't cost a call a message"


@in_virtual_time
async def test_several_calls_at_once_but_no_more_than_the_broker_takes() -> None:
    running = most = 0

    async def slow(some: Sequence[Delivery]) -> Collection[Delivery]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1.0)
        running -= 1
        return ()

    async with keeper(30.0, parallel_settles=3) as kept:
        kept.broker.on_extend = slow
        some = kept.arrive(deliveries(100))
        await kept.settled(28.0, some)
        assert most == 3
        assert kept.counts.lost == 0


@in_virtual_time
async def test_what_the_broker_took_back_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async with keeper(30.0) as kept:
        mine, theirs = kept.arrive(deliveries(2))

        async def taken(some: Sequence[Delivery]) -> Collection[Delivery]:
            return [one for one in some if one is theirs]

        kept.broker.on_extend = taken
        await asyncio.sleep(20)
        assert kept.is_lost(theirs)
        assert not kept.is_lost(mine)
        assert kept.counts.lost == 1
        await asyncio.sleep(100)
        assert kept.counts.lost == 1
        assert len(caplog.records) == 1


@in_virtual_time
async def test_what_was_settled_during_its_renewal_is_not_lost() -> None:
    """The broker knows it no more, of course."""
    async with keeper(30.0) as kept:
        (one,) = kept.arrive(deliveries(1))

        async def gone(some: Sequence[Delivery]) -> Collection[Delivery]:
            kept.forget(some)
            return some

        kept.broker.on_extend = gone
        await asyncio.sleep(60)
        assert kept.counts.lost == 0
        assert not one.lease_lost


@in_virtual_time
async def test_no_longer_than_the_bound(caplog: pytest.LogCaptureFixture) -> None:
    async with keeper(30.0, max_lease_seconds=100.0) as kept:
        (one,) = kept.arrive(deliveries(1))
        await asyncio.sleep(99)
        assert not kept.is_lost(one)
        await asyncio.sleep(30)
        assert kept.is_lost(one)
        assert "max_lease_seconds=100" in caplog.records[-1].getMessage()


@in_virtual_time
async def test_one_that_ran_out_is_lost_by_the_clock_too() -> None:
    async with keeper(30.0) as kept:
        kept.paused = True
        (one,) = kept.arrive(deliveries(1))
        await asyncio.sleep(29.9)
        assert not kept.is_lost(one)
        await asyncio.sleep(0.2)
        assert kept.is_lost(one)
        assert kept.is_lost(one)
        assert kept.counts.lost == 1


@in_virtual_time
async def test_a_renewal_that_fails_is_tried_again_in_time(caplog: pytest.LogCaptureFixture) -> None:
    async with keeper(30.0) as kept:
        some = kept.arrive(deliveries(100))
        failures = 0

        async def flaky(chunk: Sequence[Delivery]) -> Collection[Delivery]:
            nonlocal failures
            if now() < some[0].received_at + 22:
                failures += 1
                raise ConnectionResetError
            return ()

        kept.broker.on_extend = flaky
        await kept.settled(100.0, some)
        assert kept.counts.lost == 0
        assert 10 <= failures <= 60, "not one call after the other"
        assert not caplog.records


@in_virtual_time
async def test_a_refusal_is_said_once_and_lost_leases_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with keeper(30.0) as kept:

        async def refuse(chunk: Sequence[Delivery]) -> Collection[Delivery]:
            raise PermissionError("ChangeMessageVisibility is not allowed")

        kept.broker.on_extend = refuse
        kept.arrive(deliveries(200))
        with caplog.at_level(logging.DEBUG):
            await asyncio.sleep(60)
        assert kept.counts.lost == 200
        assert len([r for r in caplog.records if "not allowed" in r.getMessage()]) == 1
        assert len(caplog.records) <= 3
        kept.broker.on_extend = None
        some = kept.arrive(deliveries(1))
        await kept.settled(60, some)
        kept.broker.on_extend = refuse
        kept.arrive(deliveries(1))
        await asyncio.sleep(60)
        assert len([r for r in caplog.records if "not allowed" in r.getMessage()]) == 2, "a new spell is said anew"


@pytest.mark.parametrize("mishap", ["hangs", "cancelled", "returns None", "ends itself"])
@in_virtual_time
async def test_the_keeper_survives_what_an_adapter_does(mishap: str, caplog: pytest.LogCaptureFixture) -> None:
    async def trouble(chunk: Sequence[Delivery]) -> Any:
        kept.broker.on_extend = None
        if mishap == "hangs":
            await asyncio.sleep(10_000)
        elif mishap == "cancelled":
            raise asyncio.CancelledError
        elif mishap == "ends itself":
            asyncio.current_task().cancel()  # type: ignore[union-attr]
            await asyncio.sleep(1)

    async with keeper(30.0) as kept:
        kept.broker.on_extend = trouble
        some = kept.arrive(deliveries(1))
        await kept.settled(200.0, some)
        assert kept.counts.lost == 0
        assert len(kept.broker.extensions) > 10


@in_virtual_time
async def test_a_delivery_with_a_lease_of_its_own() -> None:
    """Its first lease is what the broker gave it; a renewal is as long as the adapter's limits say."""
    async with keeper(20.0) as kept:
        long, short = delivery(lease_seconds=60.0), delivery(lease_seconds=10.0)
        times: dict[str, list[float]] = {long.id: [], short.id: []}

        async def noting(some: Sequence[Delivery]) -> Collection[Delivery]:
            for one in some:
                times[one.id].append(now() - one.received_at)
            return ()

        kept.broker.on_extend = noting
        kept.arrive([long, short])
        await kept.settled(100.0, [long, short])
        assert 4 <= times[short.id][0] <= 5
        assert 18 <= times[long.id][0] <= 30
        for some in times.values():
            assert all(5 <= later - earlier <= 10 for earlier, later in itertools.pairwise(some))


@in_virtual_time
async def test_without_leases_it_does_nothing() -> None:
    async with keeper(None) as kept:
        plain, leased = kept.arrive([delivery(), delivery(lease_seconds=10.0)])
        await asyncio.sleep(7)
        assert [d for chunk in kept.broker.extensions for d in chunk] == [leased]
        await asyncio.sleep(1000)
        assert not kept.is_lost(plain)


@in_virtual_time
async def test_an_arrival_wakes_a_keeper_that_sleeps_longer() -> None:
    async with keeper(30.0) as kept:
        kept.arrive([delivery(lease_seconds=1000.0)])
        await asyncio.sleep(10)
        some = kept.arrive(deliveries(1))
        await kept.settled(60.0, some)
        assert kept.counts.lost == 0
        assert len(kept.broker.extensions) >= 4

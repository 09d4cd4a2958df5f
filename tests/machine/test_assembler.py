"""Deliveries to batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_sharedstream.stream.assembler import Assembler
from airflow_provider_sharedstream.stream.delivery import Delivery
from tests.machine import virtual
from tests.machine.fakes import deliveries, delivery
from tests.machine.virtual import in_virtual_time, now


def assembler(size: int, window: float) -> Assembler:
    return Assembler(size, window, clock=asyncio.get_running_loop().time)


@in_virtual_time
async def test_a_full_batch_does_not_wait() -> None:
    made = assembler(3, 5.0)
    some = deliveries(7)
    made.add(some)
    started = now()
    assert await made.next() == some[:3]
    assert await made.next() == some[3:6]
    assert now() == started
    assert await made.next() == some[6:]
    assert now() == started + 5.0


@in_virtual_time
async def test_the_window_opens_with_the_first() -> None:
    made = assembler(100, 5.0)
    started = now()
    coming = asyncio.create_task(made.next())
    first, second = deliveries(2)
    made.add([first])
    await asyncio.sleep(4.0)
    made.add([second])
    assert await coming == [first, second]
    assert now() == started + 5.0


@in_virtual_time
async def test_it_fills_while_it_is_waited_for() -> None:
    made = assembler(2, 60.0)
    coming = asyncio.create_task(made.next())
    started = now()
    for one in deliveries(2):
        await asyncio.sleep(1.0)
        made.add([one])
    assert len(await coming) == 2
    assert now() == started + 2.0


@in_virtual_time
async def test_without_a_window_nothing_waits() -> None:
    made = assembler(100, 0.0)
    some = deliveries(3)
    made.add(some)
    started = now()
    assert await made.next() == some
    assert now() == started


@in_virtual_time
async def test_a_busy_lane_does_not_starve_a_quiet_one() -> None:
    """A watcher that can't keep up leaves the busy lane always full."""
    made = assembler(10, 0.5)
    made.add(deliveries(40, lane="busy"))
    quiet = delivery(lane="quiet")
    made.add([quiet])
    for _ in range(20):
        await asyncio.sleep(0.2)
        made.add(deliveries(10, lane="busy"))
        if await made.next() == [quiet]:
            return
    raise AssertionError("twenty batches of the busy lane, none of the quiet one")


@in_virtual_time
async def test_being_cancelled_loses_nothing() -> None:
    made = assembler(2, 60.0)
    some = deliveries(2)
    made.add(some[:1])
    waiting = asyncio.create_task(made.next())
    await asyncio.sleep(1.0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    made.add(some[1:])
    assert await made.next() == some


@in_virtual_time
async def test_drop_takes_out_what_is_void_and_keeps_the_order_of_the_rest() -> None:
    made = assembler(2, 1.0)
    some = [*deliveries(5, lane="a"), *deliveries(3, lane="b")]
    made.add(some)
    void = {some[1], some[6]}
    assert set(made.drop(void.__contains__)) == void
    found: list[Delivery] = []
    for _ in range(3):
        found += await made.next()
    assert [one for one in found if one.lane == "a"] == [some[0], *some[2:5]]
    assert [one for one in found if one.lane == "b"] == [some[5], some[7]]
    assert made.drain() == []


arrivals = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.4, 1.0]), st.lists(st.sampled_from("abc"), min_size=1, max_size=12)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(arrivals, st.integers(1, 7), st.sampled_from([0.0, 0.5, 2.0]))
def test_any_arrivals(coming: list[tuple[float, Sequence[str]]], size: int, window: float) -> None:
    virtual.run(_any_arrivals(coming, size, window))


async def _any_arrivals(coming: list[tuple[float, Sequence[str]]], size: int, window: float) -> None:
    made = assembler(size, window)
    came: dict[str, list[Delivery]] = {"a": [], "b": [], "c": []}
    taken: dict[str, list[Delivery]] = {"a": [], "b": [], "c": []}
    came_at: dict[Delivery, float] = {}
    longest = 0.0

    async def take() -> None:
        nonlocal longest
        while True:
            batch = await made.next()
            assert 1 <= len(batch) <= size
            (lane,) = {str(one.lane) for one in batch}
            taken[lane] += batch
            longest = max(longest, *(now() - came_at[one] for one in batch))

    taker = asyncio.create_task(take())
    for pause, lanes in coming:
        await asyncio.sleep(pause)
        some = [delivery(lane=lane) for lane in lanes]
        for one in some:
            came[str(one.lane)].append(one)
            came_at[one] = now()
        made.add(some)
    await asyncio.sleep(100)
    taker.cancel()
    assert taken == came, "each lane whole and in order"
    # Whoever takes at once waits for a window at most, and once more for what didn't fit.
    assert longest <= 2 * window + 1e-6

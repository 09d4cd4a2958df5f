"""How many batches may be with the watchers at once."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow_provider_sharedstream.stream.delivery import Batch
from airflow_provider_sharedstream.stream.window import BatchWindow
from tests.machine.fakes import delivery, receipt
from tests.machine.virtual import in_virtual_time, now, settle_down


def window(ceiling: int = 100, *, watchers: int = 0, start: int = 8) -> BatchWindow:
    return BatchWindow(ceiling, 3.0, watchers=lambda: watchers, start=start, clock=asyncio.get_running_loop().time)


async def offered(to: BatchWindow) -> Batch:
    await to.place()
    batch = Batch([delivery()], offered_at=now())
    to.offer(batch)
    return batch


async def waits(to: BatchWindow) -> bool:
    """Whether there is no place just now."""
    task = asyncio.create_task(to.place())
    await settle_down()
    done = task.done()
    task.cancel()
    return not done


async def served(to: BatchWindow, rounds: int, seconds: Any) -> None:
    """Keep the window full; each batch takes `seconds(size)` to be stored."""
    running: list[tuple[float, float, Batch]] = []
    for _ in range(rounds):
        while len(running) < to.size:
            takes = seconds(to.size)
            running.append((now() + takes, takes, await offered(to)))
        running.sort(key=lambda one: one[0])
        at, takes, batch = running.pop(0)
        await asyncio.sleep(max(0.0, at - now()))
        to.conclude(batch, seconds=takes)


@in_virtual_time
async def test_it_is_full_at_its_size_and_a_conclusion_makes_room() -> None:
    made = window(start=2)
    first, _ = await offered(made), await offered(made)
    assert await waits(made)
    waiting = asyncio.create_task(made.place())
    await settle_down()
    made.conclude(first, seconds=99.0)
    # Halved, and there is still one with the watchers.
    assert made.size == 1
    await asyncio.sleep(0.5)
    assert not waiting.done()
    waiting.cancel()


@in_virtual_time
async def test_it_grows_while_storing_is_quick() -> None:
    made = window(ceiling=100)
    await served(made, 300, lambda size: 0.5)
    assert made.size == 100
    assert made.offered <= 100


@in_virtual_time
async def test_it_does_not_grow_while_it_is_not_full() -> None:
    made = window(start=8)
    for _ in range(100):
        made.conclude(await offered(made), seconds=0.1)
    assert made.size == 8


@in_virtual_time
async def test_it_finds_what_the_supervisor_stores_in_the_target() -> None:
    """Twenty watchers, fifty events a second: a batch takes 0.4 s of the supervisor, so seven fit into three."""
    made = window(ceiling=1000)
    await served(made, 400, lambda size: 0.4 * size)
    assert 3 <= made.size <= 9


@in_virtual_time
async def test_it_shrinks_once_for_what_was_offered_before_it_shrank() -> None:
    made = window(start=64)
    batches = [await offered(made) for _ in range(64)]
    await asyncio.sleep(10.0)
    for batch in batches:
        made.conclude(batch, seconds=10.0)
    assert made.size == 32


@in_virtual_time
async def test_it_never_closes() -> None:
    made = window(start=8)
    await served(made, 50, lambda size: 100.0)
    assert made.size == 1
    assert not await waits(made) or made.offered == 1
    await served(made, 200, lambda size: 0.1)
    assert made.size > 10


@in_virtual_time
async def test_batches_that_wait_for_a_slow_watcher_only_make_room() -> None:
    made = window(ceiling=50, watchers=2, start=2)
    quick_ones = []
    for _ in range(49):
        batch = await asyncio.wait_for(offered(made), 60)
        # One of two watchers is through with it at once; the other isn't.
        receipt(batch)
        receipt(batch, "slow", returned=False)
        quick_ones.append(batch)
    assert made.offered == 49
    await offered(made)
    await asyncio.sleep(60)
    assert await waits(made), "the ceiling holds for slow ones too"
    made.conclude(quick_ones[0], seconds=0.1)
    assert not await waits(made)


@in_virtual_time
async def test_batches_that_nobody_has_come_back_from_make_no_room() -> None:
    made = window(watchers=2, start=2)
    for _ in range(2):
        receipt(await offered(made), returned=False)
    await asyncio.sleep(100)
    assert await waits(made)


@in_virtual_time
async def test_batches_that_everybody_has_come_back_from_make_no_room() -> None:
    """It is the supervisor that they wait for."""
    made = window(watchers=2, start=2)
    for _ in range(2):
        batch = await offered(made)
        receipt(batch)
        receipt(batch, "other")
    await asyncio.sleep(100)
    assert await waits(made)


@in_virtual_time
async def test_a_probe_begins_with_one() -> None:
    made = window(start=64)
    made.probe()
    assert made.size == 1
    await served(made, 100, lambda size: 0.1)
    assert made.size > 30


@in_virtual_time
async def test_a_batch_that_is_unknown_or_concluded_twice_does_no_harm() -> None:
    made = window(start=4)
    batch = await offered(made)
    made.conclude(batch, seconds=0.1)
    made.conclude(batch, seconds=0.1)
    made.conclude(Batch([delivery()]), seconds=0.1)
    assert made.offered == 0
    assert made.size == 4

"""Permits by messages and bytes."""

from __future__ import annotations

import asyncio
import random

import pytest

from airflow_provider_sharedstream.stream.in_flight import InFlightBudget
from tests.machine.fakes import deliveries, delivery
from tests.machine.virtual import in_virtual_time, settle_down


@in_virtual_time
async def test_permits_are_taken_given_back_and_freed() -> None:
    budget = InFlightBudget(20, 1000)
    assert await budget.acquire(10) == 10
    assert await budget.acquire(10) == 10
    waiting = asyncio.create_task(budget.acquire(10))
    await settle_down()
    assert not waiting.done()
    budget.give_back(3)
    await settle_down()
    assert not waiting.done(), "three of twenty aren't worth a receive"
    budget.give_back(4)
    assert await waiting == 7
    some = deliveries(13, size=1)
    budget.admit(some)
    assert (len(budget), budget.bytes) == (13, 13)
    budget.free(some)
    budget.free(some)
    assert (len(budget), budget.bytes) == (0, 0)
    assert await budget.acquire(13) == 13, "freed twice, counted once"
    waiting = asyncio.create_task(budget.acquire(1))
    await settle_down()
    assert not waiting.done()
    waiting.cancel()


@in_virtual_time
async def test_bytes_close_the_door() -> None:
    budget = InFlightBudget(1000, 100)
    await budget.acquire(10)
    large = delivery(size=150)
    budget.admit([large])
    waiting = asyncio.create_task(budget.acquire(10))
    await settle_down()
    assert not waiting.done()
    budget.free([large])
    assert await waiting == 10


@pytest.mark.parametrize("want", [1, 2, 5, 10])
@in_virtual_time
async def test_small_budgets_are_not_stuck(want: int) -> None:
    for most in (1, 2, 3, 7):
        budget = InFlightBudget(most, 100)
        granted = await budget.acquire(want)
        assert 1 <= granted <= most
        budget.give_back(granted)
        assert await budget.acquire(want) == granted


@in_virtual_time
async def test_many_takers_never_have_more_than_there_is() -> None:
    """And whoever waits is woken, whoever else is, or is cancelled."""
    most = 30
    budget = InFlightBudget(most, 1_000_000)
    dice = random.Random(5)
    rounds = 0

    async def taker() -> None:
        nonlocal rounds
        for _ in range(200):
            permits = await budget.acquire(10)
            came = deliveries(dice.randint(0, permits))
            budget.admit(came)
            budget.give_back(permits - len(came))
            assert 0 <= len(budget) <= most
            await asyncio.sleep(dice.random() / 10)
            budget.free(came)
            rounds += 1

    takers = [asyncio.create_task(taker()) for _ in range(6)]
    victims = [asyncio.create_task(budget.acquire(10)) for _ in range(3)]
    await settle_down()
    for victim in victims:
        if victim.done():
            budget.give_back(victim.result())
        victim.cancel()
    await asyncio.gather(*takers)
    assert rounds == 1200
    assert len(budget) == 0
    assert await asyncio.wait_for(budget.acquire(most), 1) == most

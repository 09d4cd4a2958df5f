"""When to try again, and loops that can't end by mistake."""

from __future__ import annotations

import asyncio
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_sharedstream.stream.reconnect import SHORTEST_SECONDS, Backoff, Patience, never_ending
from tests.machine.virtual import in_virtual_time, now


def test_it_doubles_up_to_its_bound() -> None:
    backoff = Backoff(1.0, 30.0, jitter=lambda: 1.0)
    assert [backoff.next_seconds() for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    backoff.reset()
    assert backoff.next_seconds() == 1


@given(st.integers(0, 5000), st.floats(0, 1))
def test_no_wait_is_too_short_or_too_long(failures: int, drawn: float) -> None:
    backoff = Backoff(1.0, 60.0, jitter=lambda: drawn)
    backoff.failures = failures
    assert SHORTEST_SECONDS <= backoff.next_seconds() <= 60.0


def test_full_jitter_spreads() -> None:
    waits = []
    for _ in range(300):
        backoff = Backoff(1.0, 60.0)
        backoff.failures = 10
        waits.append(backoff.next_seconds())
    assert min(waits) < 15 < 45 < max(waits)


def test_patience_is_longer_with_what_somebody_must_change() -> None:
    for _ in range(100):
        patience = Patience()
        transient = [patience.next_seconds(transient=True) for _ in range(12)]
        fatal = [patience.next_seconds(transient=False) for _ in range(12)]
        assert max(transient) <= 30
        assert min(fatal) >= 15
        assert max(fatal) <= 300
        assert fatal[-1] >= 150
        assert patience.failures == 24
        patience.reset()
        assert patience.failures == 0
        assert patience.next_seconds(transient=True) <= 1


@in_virtual_time
async def test_a_loop_survives_its_mistakes_ever_more_slowly(caplog: pytest.LogCaptureFixture) -> None:
    times: list[float] = []

    async def step() -> None:
        times.append(now())
        raise KeyError("a mistake")

    loop = asyncio.create_task(never_ending("the loop", step))
    await asyncio.sleep(600)
    assert not loop.done()
    # Full jitter with a bound of 60: half a minute between two, on average.
    assert 10 < len(times) < 60
    with caplog.at_level(logging.ERROR):
        await asyncio.sleep(120)
    assert caplog.records
    assert all(record.exc_info for record in caplog.records), "with its traceback"
    loop.cancel()
    assert (await asyncio.gather(loop, return_exceptions=True))[0].__class__ is asyncio.CancelledError


@in_virtual_time
async def test_a_loop_that_recovers_is_quick_again() -> None:
    fails = True
    times: list[float] = []

    async def step() -> None:
        times.append(now())
        if fails:
            raise KeyError("a mistake")
        await asyncio.sleep(1)

    loop = asyncio.create_task(never_ending("the loop", step))
    await asyncio.sleep(600)
    fails = False
    await asyncio.sleep(120)
    assert times[-1] - times[-20] == pytest.approx(19)
    loop.cancel()

"""Who must be listening, and two streams on one source."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from airflow_provider_sharedstream.stream import cohort as cohort_module
from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort, cohort_of
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from tests.machine.virtual import in_virtual_time, now, settle_down, until


@in_virtual_time
async def test_nobody_is_not_enough() -> None:
    cohort = Cohort("k")
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(100)
    assert not ready.done()
    cohort.join("w")
    await settle_down()
    assert ready.done()
    assert len(cohort) == 1


@in_virtual_time
async def test_the_grace_begins_anew_with_each_that_joins_and_is_bounded() -> None:
    cohort = Cohort("k")
    cohort.join("first")
    started = now()
    ready = asyncio.create_task(cohort.ready(3.0))
    await asyncio.sleep(2.0)
    cohort.join("second")
    await ready
    assert now() - started == pytest.approx(5.0)

    started = now()
    ready = asyncio.create_task(cohort.ready(3.0))
    while not ready.done():
        cohort.join("one more")
        await asyncio.sleep(1.0)
    assert now() - started == pytest.approx(9.0, abs=1.0)


@in_virtual_time
async def test_the_grace_counts_from_when_somebody_listens() -> None:
    """Watchers that come after an hour come one after another too."""
    cohort = Cohort("k")
    ready = asyncio.create_task(cohort.ready(3.0))
    await asyncio.sleep(3600)
    cohort.join("first")
    await asyncio.sleep(2.0)
    assert not ready.done()
    cohort.join("second")
    await asyncio.sleep(2.0)
    assert not ready.done()
    await ready


@in_virtual_time
async def test_trouble_holds_it_with_one_line_and_its_leaving_lets_it_go_on(caplog: pytest.LogCaptureFixture) -> None:
    cohort = Cohort("k")
    cohort.serve(60.0, StreamMetrics("sqs", "q"), "sqs q")
    cohort.join("fine")
    token = cohort.join("orders (trigger 4)", "apply_function: there is no module 'missing'")
    assert not cohort.complete
    with caplog.at_level(logging.INFO):
        ready = [asyncio.create_task(cohort.ready(1.0)) for _ in range(4)]
        for number in range(25):
            await asyncio.sleep(1)
            cohort.leave(cohort.join(f"another {number}"))
        assert not any(task.done() for task in ready)
        held = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        (line,) = held
        assert line.startswith("sqs q is held, no message is taken for any of its 2 watchers: ")
        assert line.endswith("orders (trigger 4): apply_function: there is no module 'missing'")
        cohort.leave(token)
        await asyncio.gather(*ready)
    assert cohort.complete
    assert len(caplog.records) == 2


@in_virtual_time
async def test_another_trouble_is_another_line(caplog: pytest.LogCaptureFixture) -> None:
    cohort = Cohort("k")
    ready = asyncio.create_task(cohort.ready())
    for trouble in ("this", "that", "this"):
        token = cohort.join("w", trouble)
        await settle_down()
        cohort.leave(token)
        await settle_down()
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 3
    ready.cancel()


def test_leaving_twice_does_no_harm() -> None:
    cohort = Cohort("k")
    token = cohort.join("w")
    cohort.leave(token)
    cohort.leave(token)
    assert len(cohort) == 0


def test_a_cohort_lives_as_long_as_somebody_holds_on_to_it() -> None:
    mine = cohort_of(("k", 1))
    assert cohort_of(("k", 1)) is mine
    assert cohort_of(("k", 2)) is not mine
    del mine
    gc.collect()
    assert ("k", 1) not in cohort_module._cohorts


class TestSourceClaim:
    @in_virtual_time
    async def test_the_second_waits_and_says_so_once_a_minute(self, caplog: pytest.LogCaptureFixture) -> None:
        first = SourceClaim("sqs q", lambda: '{"batch_size": 1, "queue": "q"}')
        second = SourceClaim("sqs q", lambda: '{"queue": "q"}')
        await first.take("memory:orders")
        waiting = asyncio.create_task(second.take("memory:orders"))
        await asyncio.sleep(600)
        assert not waiting.done()
        lines = [r.getMessage() for r in caplog.records]
        assert 9 <= len(lines) <= 11
        assert lines[0].startswith("sqs q is held, no message is taken")
        assert "batch_size: the default and 1" in lines[0]
        assert first.disputed
        holding = asyncio.create_task(first.undisputed())
        await asyncio.sleep(60)
        assert not holding.done(), "the first goes on although the second misses what it settles"
        holding.cancel()
        first.drop()
        await until(waiting.done)
        second.drop()

    @in_virtual_time
    async def test_a_stream_that_is_being_closed_is_not_complained_about(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The last watcher was started anew: the same arguments, and no mistake of anybody's."""
        first, second = SourceClaim("sqs q", lambda: "the same"), SourceClaim("sqs q", lambda: "the same")
        await first.take("memory:orders")
        waiting = asyncio.create_task(second.take("memory:orders"))
        await asyncio.sleep(10)
        first.drop()
        await until(waiting.done)
        assert not caplog.records
        third = SourceClaim("sqs q", lambda: "the same")
        waiting = asyncio.create_task(third.take("memory:orders"))
        await asyncio.sleep(600)
        assert 9 <= len(caplog.records) <= 11, "one that never ends is said"
        waiting.cancel()
        second.drop()

    @in_virtual_time
    async def test_taking_again_is_free_and_dropping_frees_all(self) -> None:
        claim = SourceClaim("sqs q", lambda: "one")
        for identity in ("memory:a", "memory:a", "memory:b"):
            await claim.take(identity)
        other = SourceClaim("sqs q", lambda: "two")
        await other.take("memory:a")
        claim.drop()
        claim.drop()
        await other.take("memory:b")
        other.drop()
        assert not SourceClaim._claims

    @in_virtual_time
    async def test_dropping_does_not_take_what_is_somebody_elses(self) -> None:
        first, second = SourceClaim("sqs q", lambda: "one"), SourceClaim("sqs q", lambda: "two")
        await first.take("memory:orders")
        second.drop()
        waiting = asyncio.create_task(second.take("memory:orders"))
        await asyncio.sleep(10)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        second.drop()
        assert SourceClaim._claims["memory:orders"] is first
        first.drop()

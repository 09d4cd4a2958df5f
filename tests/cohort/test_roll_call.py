"""Who holds the door, and for how long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.roster import Departed, Listed, StreamRoster, stream_id
from tests.cohort.rosters import JOB, SOURCE, HandWritten
from tests.machine.virtual import in_virtual_time, now, settle_down

KEY = ("k",)


@pytest.fixture
def roster() -> HandWritten:
    return HandWritten(stream_id(KEY))


def cohort_with(roster: HandWritten, *here: int) -> tuple[Cohort, dict[int, object]]:
    cohort = Cohort(KEY, roster)
    cohort.serve(60.0, StreamMetrics("test", "k"), "test k")
    return cohort, {number: cohort.join(f"watcher {number}", trigger_id=number) for number in here}


@in_virtual_time
async def test_all_have_to_be_here(roster: HandWritten) -> None:
    roster.add(1, 2)
    cohort, _ = cohort_with(roster, 1)
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(30)
    assert not ready.done()
    assert not cohort.complete
    cohort.join("watcher 2", trigger_id=2)
    await settle_down()
    assert ready.done()
    assert cohort.complete


@in_virtual_time
async def test_one_that_leaves_is_waited_for(roster: HandWritten) -> None:
    roster.add(1, 2)
    cohort, tokens = cohort_with(roster, 1, 2)
    assert cohort.complete
    cohort.leave(tokens[2])
    assert not cohort.complete


@in_virtual_time
async def test_after_the_timeout_it_goes_on_loudly(roster: HandWritten, caplog: pytest.LogCaptureFixture) -> None:
    roster.add(1, 2)
    cohort, _ = cohort_with(roster, 1)
    began = now()
    await cohort.ready()
    assert now() - began == pytest.approx(60, abs=1)
    assert cohort.roll_call.excused == {2}
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "watcher 2" in error.getMessage()
    for _ in range(100):
        assert cohort.complete
        await asyncio.sleep(10)
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


@in_virtual_time
async def test_one_that_came_back_is_waited_for_anew(roster: HandWritten) -> None:
    roster.add(1, 2)
    cohort, _ = cohort_with(roster, 1)
    await cohort.ready()
    assert cohort.roll_call.excused == {2}
    token = cohort.join("watcher 2", trigger_id=2)
    assert cohort.complete
    assert cohort.roll_call.excused == frozenset()
    cohort.leave(token)
    began = now()
    await cohort.ready()
    assert now() - began == pytest.approx(60, abs=1)


@in_virtual_time
async def test_what_is_another_triggerers_is_never_taken(roster: HandWritten, caplog: pytest.LogCaptureFixture) -> None:
    roster.add(1, 2)
    roster.owner = JOB + 1
    cohort, _ = cohort_with(roster, 1, 2)
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(3600)
    assert not ready.done()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 50 <= len(warnings) <= 61, "said, once a minute"
    assert "triggerer 8" in warnings[0]
    roster.owner = JOB
    await ready


@in_virtual_time
async def test_patience_does_not_run_while_it_is_another_triggerers(roster: HandWritten) -> None:
    roster.add(1, 2)
    roster.owner = JOB + 1
    cohort, _ = cohort_with(roster, 1)
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(3600)
    roster.owner = JOB
    await asyncio.sleep(30)
    assert not ready.done()
    await asyncio.sleep(40)
    assert ready.done()


@in_virtual_time
async def test_a_departed_one_is_waited_for_as_long_as_the_roster_says(roster: HandWritten) -> None:
    roster.add(1)
    cohort, _ = cohort_with(roster, 1)
    roster.departed[2] = Departed(1.0, "watcher 2")
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(3600)
    assert not ready.done()
    del roster.departed[2]
    await settle_down()
    await asyncio.sleep(1)
    assert ready.done()


@in_virtual_time
async def test_who_has_been_started_has_to_be_listed_first(roster: HandWritten) -> None:
    """Its row exists; a roster that doesn't have it yet may lack its siblings too."""
    cohort, _ = cohort_with(roster, 1)
    assert not cohort.complete
    roster.add(1, 2)
    assert not cohort.complete
    cohort.join("watcher 2", trigger_id=2)
    assert cohort.complete


@in_virtual_time
async def test_one_that_never_gets_listed_is_waited_for_no_longer_than_others(roster: HandWritten) -> None:
    """A trigger that nobody can tell the stream of."""
    cohort, _ = cohort_with(roster, 1)
    await cohort.ready()
    assert cohort.roll_call.excused == {1}
    roster.add(2)
    cohort.join("watcher 2", trigger_id=2)
    assert cohort.complete


@in_virtual_time
async def test_those_whose_rows_are_gone_take_nothing(roster: HandWritten) -> None:
    roster.add(1)
    cohort, _ = cohort_with(roster, 1)
    assert cohort.complete
    roster.members.clear()
    roster.owner = None
    ready = asyncio.create_task(cohort.ready())
    await asyncio.sleep(600)
    assert not ready.done()
    ready.cancel()


@in_virtual_time
async def test_one_that_was_failed_by_airflow_is_as_good_as_gone(roster: HandWritten) -> None:
    roster.add(1, 2)
    cohort, tokens = cohort_with(roster, 1, 2)
    complete = [cohort.complete]
    await asyncio.sleep(10)
    cohort.unheard(2, now() - 20)  # it came later than that
    complete.append(cohort.complete)
    cohort.unheard(2, now() - 5)
    complete.append(cohort.complete)
    cohort.leave(tokens[2])
    cohort.join("watcher 2", trigger_id=2)
    complete.append(cohort.complete)
    assert complete == [True, True, False, True]


@in_virtual_time
async def test_without_a_roster_the_join_grace_holds(roster: HandWritten) -> None:
    roster.blind = True
    cohort, _ = cohort_with(roster, 1)
    began = now()
    await cohort.ready(3.0)
    assert now() - began == pytest.approx(3.0, abs=0.1)


@in_virtual_time
async def test_with_a_roster_nobody_waits_for_a_grace(roster: HandWritten) -> None:
    roster.add(1)
    cohort, _ = cohort_with(roster, 1)
    began = now()
    await cohort.ready(3.0)
    assert now() == began


OTHER = "another stream"


def with_a_stranger(roster: HandWritten, *, owner: int = JOB, source: str = SOURCE) -> Cohort:
    """A complete cohort; a watcher with other arguments is on the roster, on a source of the same name."""
    roster.add(1)
    roster.others[OTHER] = StreamRoster(owner, {2: Listed(0.0, "stranger")}, {}, source)
    return cohort_with(roster, 1)[0]


@contextmanager
def claims(cohort: Cohort) -> Iterator[tuple[SourceClaim, SourceClaim]]:
    """The stream's, and the stranger's."""
    roll_call = cohort.roll_call
    mine, others = (
        SourceClaim("test k", lambda: "{}", roll_call.stream, roll_call.why_hold),
        SourceClaim("test k", lambda: "[]", OTHER),
    )
    yield mine, others
    mine.drop()
    others.drop()


def owed(roster: HandWritten, cohort: Cohort) -> set[int]:
    """Who has to see a message."""
    shown = roster.look(0.0).roster
    assert shown is not None
    return set(cohort.roll_call.owed(shown).members)


@in_virtual_time
async def test_a_stranger_is_waited_for_until_it_shows_that_its_source_is_another(roster: HandWritten) -> None:
    cohort = with_a_stranger(roster)
    with claims(cohort) as (mine, others):
        assert cohort.complete, "it may connect"
        await mine.take("queue in one region")
        assert mine.disputed
        going_on = asyncio.create_task(mine.undisputed())
        await asyncio.sleep(20)
        assert not going_on.done()
        assert owed(roster, cohort) == {1, 2}
        await others.take("queue in another region")
        await going_on
        assert owed(roster, cohort) == {1}


@in_virtual_time
async def test_a_stranger_on_the_same_source_is_owed_all(roster: HandWritten) -> None:
    cohort = with_a_stranger(roster)
    with claims(cohort) as (mine, others):
        await mine.take("the queue")
        waiting = asyncio.create_task(others.take("the queue"))
        await asyncio.sleep(300)
        assert mine.disputed
        assert cohort.complete
        assert not cohort.roll_call.excused, "it listens, and may be the one who stays"
        assert owed(roster, cohort) == {1, 2}
        mine.drop()
        await waiting


@in_virtual_time
async def test_a_stranger_that_never_connects_is_given_up_loudly(
    roster: HandWritten, caplog: pytest.LogCaptureFixture
) -> None:
    cohort = with_a_stranger(roster)
    with claims(cohort) as (mine, _):
        await mine.take("the queue")
        began = now()
        await mine.undisputed()
    assert now() - began == pytest.approx(60, abs=1)
    assert cohort.roll_call.excused == {2}
    assert any(r.levelno == logging.WARNING and "is held" in r.getMessage() for r in caplog.records)
    assert any(r.levelno == logging.ERROR and "stranger" in r.getMessage() for r in caplog.records)


@pytest.mark.parametrize(("owner", "source"), [(JOB + 1, SOURCE), (JOB, "another queue")])
@in_virtual_time
async def test_who_is_elsewhere_is_no_matter(roster: HandWritten, owner: int, source: str) -> None:
    cohort = with_a_stranger(roster, owner=owner, source=source)
    with claims(cohort) as (mine, _):
        await mine.take("the queue")
        assert not mine.disputed
        assert owed(roster, cohort) == {1}

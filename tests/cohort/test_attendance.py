"""What is settled only later, and what not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.attendance import Attendance, attended, objections
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition, Outcome, Verdict
from airflow_provider_sharedstream.stream.receipts import Receipt
from airflow_provider_sharedstream.stream.roster import Departed, Listed, StreamRoster, stream_id
from tests.cohort.rosters import HandWritten
from tests.machine.virtual import in_virtual_time, now, settle_down

ACCEPT, RELEASE, DEAD_LETTER = Disposition.ACCEPT, Disposition.RELEASE, Disposition.DEAD_LETTER


def delivery(name: str, received_at: float) -> Delivery:
    made = Delivery(id=name, body=b"")
    made.received_at = received_at
    return made


OLD, NEW = delivery("old", 50.0), delivery("new", 150.0)


def batch(*seen_by: int, matched: dict[int, Any] | None = None, excused: frozenset[int] = frozenset()) -> Batch:
    made = Batch([OLD, NEW], excused=excused)
    for number in seen_by:
        receipt = Receipt(made, f"watcher {number}", number)
        for one in (matched or {}).get(number, ()):
            receipt.match(one)
        receipt.come_back()
    return made


def roster(*members: int, since: float = 0.0, departed: dict[int, float] | None = None) -> StreamRoster:
    gone = {number: Departed(until, f"watcher {number}") for number, until in (departed or {}).items()}
    return StreamRoster(7, {number: Listed(since, f"watcher {number}") for number in members}, gone)


@pytest.mark.parametrize(
    ("case", "handed", "by_roster", "open_ones"),
    [
        ("all have seen it", batch(1, 2), roster(1, 2), []),
        ("one has not", batch(1), roster(1, 2), [OLD, NEW]),
        ("a newcomer has not seen what came before it", batch(1), roster(1, 2, since=100.0), [NEW]),
        ("one that is waited for no longer", batch(1, excused=frozenset({2})), roster(1, 2), []),
        ("the event of one whose row is gone", batch(1, 2, matched={2: [OLD]}), roster(1), [OLD]),
        ("one whose row is gone and who wanted nothing", batch(1, 2), roster(1), []),
        ("what came while a successor is on the way", batch(1), roster(1, departed={2: 100.0}), [NEW]),
        ("seen by the old, and the new is on the way", batch(1, 2), roster(1, departed={2: 100.0}), [NEW]),
        (
            "a trigger of two assets that lost one",
            batch(1, 2, matched={2: [OLD]}),
            roster(1, 2, departed={2: 200.0}),
            [OLD],
        ),
        ("nobody is left", batch(1, matched={1: [OLD]}), roster(), [OLD, NEW]),
        ("nobody is left of those that were waited for", batch(9, excused=frozenset({9})), roster(), []),
        (
            "one that the roster never knew",
            batch(1, 9, matched={9: [OLD]}, excused=frozenset({9})),
            roster(1),
            [],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_objects(case: str, handed: Batch, by_roster: StreamRoster, open_ones: list[Delivery]) -> None:
    assert list(objections(handed, by_roster)) == open_ones, case


def test_a_watcher_without_a_row_is_on_no_roster() -> None:
    made = Batch([OLD])
    Receipt(made, "alone").match_all()
    assert objections(made, roster()) == {}


def test_only_final_verdicts_are_changed() -> None:
    released: list[Delivery] = []

    def release(one: Delivery) -> Disposition:
        released.append(one)
        return RELEASE

    handed, by_roster = batch(1), roster(1, 2)
    verdicts, count = attended(handed, [Verdict(ACCEPT, [OLD]), Verdict(RELEASE, [NEW])], by_roster, release)
    assert verdicts == [Verdict(RELEASE, [OLD, NEW])]
    assert (count, released) == (1, [OLD])
    verdicts, count = attended(handed, [Verdict(DEAD_LETTER, [OLD, NEW])], by_roster, release)
    assert verdicts == [Verdict(RELEASE, [OLD, NEW])]
    assert count == 2


class Decided:
    """An attendance of which every decision is noted."""

    def __init__(self, reader: HandWritten | None) -> None:
        self.order: list[tuple[Batch, StreamRoster | None]] = []
        self.cohort = None if reader is None else Cohort(("k",), reader)
        self.attendance = Attendance(self.cohort, self._note, clock=now)
        self.task = asyncio.create_task(self._run())

    def _note(self, made: Batch, outcome: Outcome, stream: StreamRoster | None) -> None:
        self.order.append((made, stream))

    async def _run(self) -> None:
        while True:
            await self.attendance.step()


CLEAN = Outcome(1, 0, 0)


@in_virtual_time
async def test_an_outcome_waits_for_a_later_roster() -> None:
    reader = HandWritten(stream_id(("k",)))
    reader.add(1)
    reader.stopped_at = now()
    decided = Decided(reader)
    handed = batch(1)
    decided.attendance.put(handed, CLEAN)
    await asyncio.sleep(5)
    assert decided.order == []
    reader.stopped_at = now() - 4.0
    await asyncio.sleep(1)
    assert [made for made, _ in decided.order] == [handed]
    assert len(decided.attendance) == 0
    decided.task.cancel()


@in_virtual_time
async def test_they_are_decided_in_their_order() -> None:
    reader = HandWritten(stream_id(("k",)))
    reader.add(1)
    reader.stopped_at = now()
    decided = Decided(reader)
    batches = [batch(1) for _ in range(5)]
    for made in batches:
        decided.attendance.put(made, CLEAN)
        await asyncio.sleep(1)
    reader.stopped_at = now() - 2.5
    await asyncio.sleep(0.5)
    assert [made for made, _ in decided.order] == batches[:3]
    reader.stopped_at = None
    await asyncio.sleep(0.5)
    assert [made for made, _ in decided.order] == batches
    decided.task.cancel()


@in_virtual_time
async def test_without_a_roster_nothing_waits() -> None:
    decided = Decided(None)
    handed = batch(1)
    decided.attendance.put(handed, CLEAN)
    assert decided.order == [(handed, None)]
    decided.task.cancel()


@in_virtual_time
async def test_one_that_is_given_up_lets_all_go() -> None:
    reader = HandWritten(stream_id(("k",)))
    reader.add(1)
    reader.stopped_at = now()
    decided = Decided(reader)
    decided.attendance.put(batch(1), CLEAN)
    decided.attendance.put(batch(1), CLEAN)
    await settle_down()
    assert not decided.order
    reader.blind = True
    await asyncio.sleep(1)
    assert [stream for _, stream in decided.order] == [None, None]
    decided.task.cancel()


@in_virtual_time
async def test_a_stream_that_ends_waits_a_while() -> None:
    reader = HandWritten(stream_id(("k",)))
    reader.add(1)
    reader.stopped_at = now()
    decided = Decided(reader)
    decided.task.cancel()
    decided.attendance.put(batch(1), CLEAN)
    began = now()
    await decided.attendance.finish(3.0)
    assert now() - began == pytest.approx(3.0, abs=0.3)
    assert len(decided.attendance) == 1
    reader.stopped_at = None
    await decided.attendance.finish(3.0)
    assert len(decided.order) == 1

"""An ordered lane is held at its first delivery that was not accepted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from airflow_provider_sharedstream.stream import lanes as lanes_module
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.lanes import PASSES, LaneGuard
from tests.machine.fakes import deliveries, delivery

ACCEPT, RELEASE, DEAD_LETTER = Disposition.ACCEPT, Disposition.RELEASE, Disposition.DEAD_LETTER
LAPSE = Disposition.LAPSE


def arrived(guard: LaneGuard, count: int, lane: Any = "a", now: float = 0.0) -> list[Delivery]:
    made = deliveries(count, lane=lane)
    for one in made:
        assert guard.arrive(one, now)
    return made


def test_what_passes_lets_the_lane_go_on() -> None:
    guard = LaneGuard()
    for one, disposition in zip(arrived(guard, 2), (ACCEPT, DEAD_LETTER), strict=True):
        assert guard.judge(one, disposition, 0.0) is disposition
        guard.leave(one, 0.0)
    assert len(guard) == 0


@pytest.mark.parametrize("disposition", [RELEASE, LAPSE, Disposition.LEAVE])
def test_what_does_not_pass_holds_it(disposition: Disposition) -> None:
    guard = LaneGuard()
    first, second, third = arrived(guard, 3)
    assert guard.judge(first, ACCEPT, 0.0) is ACCEPT
    assert guard.judge(second, disposition, 0.0) is disposition
    third.release_delay_seconds = 40.0
    assert guard.judge(third, ACCEPT, 0.0) is RELEASE
    assert third.release_delay_seconds == 0.0, "it can't come before the one that it waits for"


def test_a_broker_that_rewinds_need_not_be_told() -> None:
    guard = LaneGuard(rewinds=True)
    first, second = arrived(guard, 2)
    assert guard.judge(first, RELEASE, 0.0) is RELEASE
    assert guard.judge(second, ACCEPT, 0.0) is LAPSE


def test_lanes_do_not_know_each_other() -> None:
    guard = LaneGuard()
    (mine,), (theirs,) = arrived(guard, 1, "a"), arrived(guard, 1, "b")
    assert guard.judge(mine, RELEASE, 0.0) is RELEASE
    assert guard.judge(theirs, ACCEPT, 0.0) is ACCEPT
    unordered = delivery()
    assert guard.arrive(unordered, 0.0)
    assert guard.judge(unordered, ACCEPT, 0.0) is ACCEPT


def test_what_comes_from_behind_while_the_held_one_is_still_here_is_early() -> None:
    """A broker goes on handing out what lies behind a message that waits here for its release."""
    for guard in (LaneGuard(), LaneGuard(rewinds=True)):
        (held,) = arrived(guard, 1)
        held.release_delay_seconds = 20.0
        guard.judge(held, RELEASE, 0.0)
        behind = delivery(lane="a")
        assert not guard.arrive(behind, 5.0)
        assert behind.release_delay_seconds == 15.0
        assert not guard.is_void(behind), "it has to be given back"
        assert not guard.is_void(held), "it still has to be released"


def test_an_early_one_does_not_come_again_at_once() -> None:
    guard = LaneGuard()
    (held,) = arrived(guard, 1)
    guard.judge(held, RELEASE, 0.0)
    behind = delivery(lane="a")
    assert not guard.arrive(behind, 5.0)
    assert behind.release_delay_seconds >= 1.0


def test_the_return_of_the_held_one_makes_void_what_is_still_here() -> None:
    guard = LaneGuard()
    held, behind = arrived(guard, 2)
    guard.judge(held, RELEASE, 0.0)
    guard.leave(held, 0.0)
    assert guard.arrive(delivery(held.id, lane="a"), 1.0)
    assert guard.is_void(behind)
    assert guard.judge(behind, ACCEPT, 1.0) is LAPSE


def test_it_is_held_at_the_first_that_did_not_pass_whichever_was_known_first() -> None:
    """A lease may be lost behind one that is still with the watchers, or whose acceptance is tried again."""
    for guard in (LaneGuard(), LaneGuard(rewinds=True, stragglers=True)):
        first, second, third, fourth = arrived(guard, 4)
        guard.hold(third, 0.0)
        guard.leave(third, 0.0)
        assert guard.judge(first, ACCEPT, 0.0) is ACCEPT, "it lies before"
        guard.leave(first, 0.0)
        guard.hold(second, 0.0)
        guard.leave(second, 0.0)
        assert guard.judge(fourth, ACCEPT, 0.0) is not ACCEPT
        guard.leave(fourth, 0.0)
        if guard._stragglers:
            assert not guard.arrive(delivery(third.id, lane="a"), 1.0)
        assert guard.arrive(delivery(second.id, lane="a"), 1.0)


def test_what_lies_before_the_held_one_is_as_good_as_it_was() -> None:
    """Its acceptance may still be on its way when the held one returns, and would be forgotten."""
    guard = LaneGuard(rewinds=True)
    before, held, behind = arrived(guard, 3)
    assert guard.judge(before, ACCEPT, 0.0) is ACCEPT
    guard.judge(held, RELEASE, 0.0)
    again = delivery(held.id, lane="a")
    assert guard.arrive(again, 1.0)
    assert [guard.is_void(one) for one in (before, held, behind, again)] == [False, True, True, False]


def test_stragglers_are_early_until_the_held_one_returns() -> None:
    guard = LaneGuard(rewinds=True, stragglers=True, straggler_grace_seconds=30.0)
    held, behind = arrived(guard, 2)
    held.release_delay_seconds = 10.0
    guard.judge(held, RELEASE, 0.0)
    guard.leave(held, 0.0)
    assert guard.judge(behind, ACCEPT, 0.0) is LAPSE
    guard.leave(behind, 0.0)
    assert not guard.arrive(delivery(behind.id, lane="a"), 12.0)
    again = delivery(held.id, lane="a")
    assert guard.arrive(again, 13.0)
    assert guard.judge(again, ACCEPT, 13.0) is ACCEPT


def test_a_held_one_that_never_returns_is_not_waited_for_for_ever() -> None:
    guard = LaneGuard(rewinds=True, stragglers=True, straggler_grace_seconds=30.0)
    (held,) = arrived(guard, 1)
    held.release_delay_seconds = 10.0
    guard.judge(held, RELEASE, 0.0)
    guard.leave(held, 5.0)
    assert not guard.arrive(delivery(lane="a"), 44.0)
    assert guard.arrive(delivery(lane="a"), 45.0)


def test_an_ended_epoch_is_void() -> None:
    guard = LaneGuard()
    mine, theirs, none = *arrived(guard, 1, "a"), *arrived(guard, 1, "b"), delivery()
    guard.arrive(none, 0.0)
    guard.end_epoch(frozenset({"a"}))
    assert [guard.is_void(one) for one in (mine, theirs, none)] == [True, False, False]
    (later,) = arrived(guard, 1, "a")
    assert not guard.is_void(later)
    guard.end_epoch()
    assert all(guard.is_void(one) for one in (mine, theirs, none, later))
    assert guard.judge(mine, ACCEPT, 0.0) is LAPSE
    assert len(guard) == 0


def test_a_void_delivery_does_not_touch_its_lane() -> None:
    guard = LaneGuard()
    (old,) = arrived(guard, 1)
    guard.end_epoch(frozenset({"a"}))
    (new,) = arrived(guard, 1)
    guard.hold(old, 0.0)
    guard.leave(old, 0.0)
    assert guard.judge(new, ACCEPT, 0.0) is ACCEPT


def test_lanes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group a customer, a session an order: they come by the thousand and never again."""
    monkeypatch.setattr(lanes_module, "SWEEP_AT", 50)
    for guard in (LaneGuard(), LaneGuard(rewinds=True), LaneGuard(rewinds=True, stragglers=True)):
        for number in range(2000):
            (one,) = arrived(guard, 1, lane=number, now=number)
            guard.judge(one, RELEASE if number % 2 else ACCEPT, number)
            guard.leave(one, number)
            assert len(guard) <= 100, "what was released and went elsewhere is remembered for ever"


class Lanes(RuleBasedStateMachine):
    """Against a model: deliveries of two lanes arrive, are judged in order, leave in order, return or don't."""

    @initialize(rewinds=st.booleans(), stragglers=st.booleans())
    def start(self, rewinds: bool, stragglers: bool) -> None:
        self.rewinds, self.stragglers = rewinds, stragglers
        self.guard = LaneGuard(rewinds=rewinds, stragglers=stragglers, straggler_grace_seconds=30.0)
        self.now = 0.0
        self.unjudged: dict[str, list[Delivery]] = {"a": [], "b": []}
        self.judged: dict[str, list[Delivery]] = {"a": [], "b": []}
        self.early: list[Delivery] = []
        self.held: dict[str, Delivery | None] = {"a": None, "b": None}
        self.gone: set[Delivery] = set()
        self.order: list[Delivery] = []
        self.void: set[Delivery] = set()

    def ours(self, lane: str) -> list[Delivery]:
        early = [one for one in self.early if one.lane == lane]
        return [one for one in (*self.unjudged[lane], *self.judged[lane], *early) if one not in self.void]

    @rule(lane=st.sampled_from("ab"), returns=st.booleans())
    def arrives(self, lane: str, returns: bool) -> None:
        held = self.held[lane]
        one = delivery(held.id if held is not None and returns else None, lane=lane)
        passed = self.guard.arrive(one, self.now)
        if held is None:
            assert passed
        elif passed:
            assert one.id == held.id or held in self.gone, "passed while the held one was still here"
            at = self.order.index(held)
            self.void.update(old for old in self.ours(lane) if self.order.index(old) >= at)
            self.held[lane] = None
        self.order.append(one)
        if passed:
            self.unjudged[lane].append(one)
        else:
            assert one.release_delay_seconds >= 1.0
            self.early.append(one)

    @rule(lane=st.sampled_from("ab"), wish=st.sampled_from([ACCEPT, ACCEPT, DEAD_LETTER, RELEASE, LAPSE]))
    def is_judged(self, lane: str, wish: Disposition) -> None:
        if not self.unjudged[lane]:
            return
        one = self.unjudged[lane].pop(0)
        one.release_delay_seconds = 5.0
        verdict = self.guard.judge(one, wish, self.now)
        if one in self.void:
            assert verdict is LAPSE
            return
        self.judged[lane].append(one)
        if self.held[lane] is not None:
            assert verdict is (LAPSE if self.rewinds else RELEASE), "something behind a held one was let through"
        else:
            assert verdict is wish
            if wish not in PASSES:
                self.held[lane] = one

    @rule(lane=st.sampled_from("ab"))
    def leaves(self, lane: str) -> None:
        if self.judged[lane]:
            self.leave(self.judged[lane].pop(0))

    @rule()
    def early_one_leaves(self) -> None:
        if self.early:
            self.leave(self.early.pop(0))

    def leave(self, one: Delivery) -> None:
        assert self.guard.is_void(one) == (one in self.void)
        self.guard.leave(one, self.now)
        self.gone.add(one)

    @rule(seconds=st.sampled_from([0.1, 10.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(lane=st.sampled_from(["a", "b", None]))
    def epoch_ends(self, lane: str | None) -> None:
        self.guard.end_epoch(None if lane is None else frozenset({lane}))
        for one in "ab" if lane is None else lane:
            self.void.update(self.ours(one))
            self.held[one] = None

    @rule()
    @precondition(lambda self: any(self.unjudged.values()))
    def only_void_is_void(self) -> None:
        for some in (*self.unjudged.values(), *self.judged.values(), self.early):
            for one in some:
                assert self.guard.is_void(one) == (one in self.void)

    @invariant()
    def forgets(self) -> None:
        if not hasattr(self, "guard"):
            return
        for lane in "ab":
            if not self.ours(lane) and not (self.stragglers and self.held[lane] is not None):
                assert lane not in self.guard._lanes


TestLanes = Lanes.TestCase
TestLanes.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

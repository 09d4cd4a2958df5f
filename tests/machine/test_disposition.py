"""From an outcome to what the broker is told."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition, DispositionPolicy, Outcome, Verdict
from tests.machine.fakes import deliveries, delivery, receipt

ACCEPT, RELEASE, DEAD_LETTER = Disposition.ACCEPT, Disposition.RELEASE, Disposition.DEAD_LETTER
LEAVE, LAPSE = Disposition.LEAVE, Disposition.LAPSE

ACKED = Outcome(1, 0, 0)


def judged(policy: DispositionPolicy, batch: Batch, outcome: Outcome) -> Disposition:
    """The one verdict on a batch of one."""
    (verdict,) = policy.judge(batch, outcome)
    assert verdict.deliveries == list(batch.deliveries)
    return verdict.disposition


def batch_of(*, matched: bool = False, rejected: bool = False, failed: bool = False, **more: Any) -> Batch:
    """A batch of one with one watcher's receipt."""
    batch = Batch([delivery(**more)])
    slip = receipt(batch)
    if matched:
        slip.match(batch.deliveries[0])
    if rejected:
        slip.reject(batch.deliveries[0], "spoilt")
    if failed:
        slip.fail(batch.deliveries[0])
    return batch


class TestRows:
    """The table, row by row."""

    def test_a_watcher_failed(self) -> None:
        assert judged(DispositionPolicy(), batch_of(matched=True), Outcome(1, 1, 0)) is RELEASE

    def test_a_watcher_could_not_judge_it_now(self) -> None:
        assert judged(DispositionPolicy(), batch_of(matched=True, failed=True), ACKED) is RELEASE

    def test_a_watcher_never_came_back(self) -> None:
        batch = Batch([delivery()])
        receipt(batch, returned=False).match_all()
        assert judged(DispositionPolicy(), batch, ACKED) is RELEASE

    def test_a_watcher_was_counted_and_never_seen(self) -> None:
        batch = batch_of(matched=True)
        assert judged(DispositionPolicy(), batch, Outcome(2, 0, 0)) is RELEASE

    @pytest.mark.parametrize(
        ("on_reject", "expected"), [("dead_letter", DEAD_LETTER), ("accept", ACCEPT), ("release", RELEASE)]
    )
    def test_rejected(self, on_reject: Any, expected: Disposition) -> None:
        batch = batch_of(rejected=True)
        assert judged(DispositionPolicy(on_reject=on_reject), batch, ACKED) is expected
        if expected is DEAD_LETTER:
            assert (batch.deliveries[0].reason, batch.deliveries[0].rejected_by) == ("spoilt", ("w",))

    @pytest.mark.parametrize(
        ("on_reject", "expected"), [("dead_letter", DEAD_LETTER), ("accept", ACCEPT), ("release", RELEASE)]
    )
    def test_rejected_through_airflow(self, on_reject: Any, expected: Disposition) -> None:
        assert judged(DispositionPolicy(on_reject=on_reject), batch_of(), Outcome(0, 0, 1)) is expected

    def test_rejected_by_one_and_matched_by_another(self) -> None:
        for quorum, expected in (("any", DEAD_LETTER), ("all", ACCEPT)):
            batch = batch_of(rejected=True)
            receipt(batch, "other").match_all()
            assert judged(DispositionPolicy(reject_quorum=quorum), batch, Outcome(2, 0, 0)) is expected  # type: ignore[arg-type]

    def test_rejected_by_one_and_nobody_elses(self) -> None:
        """Who had nothing to do with a message has no say on it."""
        for quorum in ("any", "all"):
            batch = batch_of(rejected=True)
            receipt(batch, "other")
            assert judged(DispositionPolicy(reject_quorum=quorum), batch, Outcome(2, 0, 0)) is DEAD_LETTER

    def test_rejected_through_airflow_by_one_and_nobody_elses(self) -> None:
        for quorum in ("any", "all"):
            batch = batch_of()
            receipt(batch, "other")
            assert judged(DispositionPolicy(reject_quorum=quorum), batch, Outcome(1, 0, 1)) is DEAD_LETTER

    def test_matched(self) -> None:
        assert judged(DispositionPolicy(), batch_of(matched=True), ACKED) is ACCEPT

    @pytest.mark.parametrize(
        ("on_unmatched", "expected"),
        [("accept", ACCEPT), ("dead_letter", DEAD_LETTER), ("release", RELEASE), ("leave", LEAVE)],
    )
    def test_nobodys(self, on_unmatched: Any, expected: Disposition) -> None:
        assert judged(DispositionPolicy(on_unmatched=on_unmatched), batch_of(), ACKED) is expected

    def test_nobody_was_listening(self) -> None:
        batch = Batch(deliveries(3))
        assert DispositionPolicy().judge(batch, Outcome(0, 0, 0)) == [Verdict(LAPSE, list(batch.deliveries))]

    def test_delivered_too_often(self) -> None:
        policy = DispositionPolicy(max_deliveries=3)
        assert judged(policy, batch_of(failed=True, delivery_count=2), ACKED) is RELEASE
        batch = batch_of(failed=True, delivery_count=3)
        assert judged(policy, batch, ACKED) is DEAD_LETTER
        assert batch.deliveries[0].reason == "a watcher failed on it (delivered 3 times)"
        assert judged(policy, batch_of(matched=True, delivery_count=3), ACKED) is ACCEPT
        assert (
            judged(DispositionPolicy(max_deliveries=None), batch_of(failed=True, delivery_count=99), ACKED) is RELEASE
        )

    def test_without_a_place_nothing_is_dropped(self) -> None:
        policy = DispositionPolicy(can_dead_letter=False, max_deliveries=3, on_unmatched="dead_letter")
        for batch in (
            batch_of(rejected=True),
            batch_of(),
            batch_of(failed=True, delivery_count=50),
            batch_of(rejected=True, delivery_count=50),
        ):
            assert judged(policy, batch, ACKED) is RELEASE


def test_the_delay_doubles_and_is_bounded() -> None:
    policy = DispositionPolicy(release_delay_seconds=5.0, max_release_delay_seconds=900.0, max_deliveries=None)
    delays = []
    for count in (0, 1, 2, 3, 8, 9, 100, 10**6):
        one = delivery(delivery_count=count)
        policy.release(one)
        delays.append(one.release_delay_seconds)
    assert delays == [5.0, 5.0, 10.0, 20.0, 640.0, 900.0, 900.0, 900.0]


def test_messages_of_one_batch_are_judged_each_by_itself() -> None:
    batch = Batch(deliveries(5))
    matched, rejected, failed, nobodys, both = batch.deliveries
    slip = receipt(batch)
    slip.match(matched)
    slip.reject(rejected, "spoilt")
    slip.fail(failed)
    other = receipt(batch, "other")
    other.match(both)
    verdicts = DispositionPolicy(on_unmatched="leave").judge(batch, Outcome(2, 0, 0))
    assert {d: v.disposition for v in verdicts for d in v.deliveries} == {
        matched: ACCEPT,
        rejected: DEAD_LETTER,
        failed: RELEASE,
        nobodys: LEAVE,
        both: ACCEPT,
    }


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    batch = Batch([delivery(delivery_count=draw(st.integers(0, 12))) for _ in range(draw(st.integers(1, 4)))])
    words = draw(st.sampled_from([["", "match"], ["", "reject"], ["", "", "match", "match", "reject", "fail"]]))
    for number in range(draw(st.integers(0, 4))):
        slip = receipt(batch, f"w{number}", returned=draw(st.integers(0, 9)) > 0)
        if draw(st.booleans()) and draw(st.booleans()):
            slip.match_all()
        for one in batch.deliveries:
            word = draw(st.sampled_from(words))
            if word == "match":
                slip.match(one)
            elif word == "reject":
                slip.reject(one, f"by w{number}")
            elif word == "fail":
                slip.fail(one)
    return batch


policies = st.builds(
    DispositionPolicy,
    on_reject=st.sampled_from(["dead_letter", "accept", "release"]),
    reject_quorum=st.sampled_from(["any", "all"]),
    on_unmatched=st.sampled_from(["accept", "dead_letter", "release", "leave"]),
    max_deliveries=st.sampled_from([None, 1, 3, 10]),
    release_delay_seconds=st.sampled_from([0.0, 5.0]),
    max_release_delay_seconds=st.just(900.0),
    can_dead_letter=st.booleans(),
)


@st.composite
def judgements(draw: st.DrawFn) -> tuple[Batch, Outcome]:
    batch = draw(batches())
    if draw(st.booleans()):
        # Each watcher counted once, as Airflow does.
        rejected = draw(st.integers(0, len(batch.receipts)))
        return batch, Outcome(len(batch.receipts) - rejected, draw(st.sampled_from([0, 0, 0, 1])), rejected)
    return batch, Outcome(draw(st.integers(0, 4)), draw(st.integers(0, 1)), draw(st.integers(0, 2)))


def words(one: Delivery, batch: Batch) -> tuple[bool, bool, bool]:
    """Whether it was matched, rejected, failed by anybody."""
    slips = batch.receipts
    return (
        any(s.matched_all or one in s.matched for s in slips),
        any(one in s.rejected for s in slips),
        any(one in s.failed for s in slips),
    )


@given(policies, judgements())
def test_any_outcome(policy: DispositionPolicy, judgement: tuple[Batch, Outcome]) -> None:
    check(policy, *judgement)


def test_all_that_two_watchers_can_do_with_a_message() -> None:
    words = ("nothing", "match", "reject", "fail", "reject through Airflow")
    ways = list(itertools.product(words, (True, False)))
    every_policy = [
        DispositionPolicy(on_reject, quorum, on_unmatched, can_dead_letter=place)
        for on_reject in ("dead_letter", "accept", "release")
        for quorum in ("any", "all")
        for on_unmatched in ("accept", "dead_letter", "release", "leave")
        for place in (True, False)
    ]
    for both, failed in itertools.product(itertools.product(ways, ways), (0, 1)):
        batch = Batch([delivery()])
        for number, (word, returned) in enumerate(both):
            slip = receipt(batch, f"w{number}", returned=returned)
            if word in ("match", "reject", "fail"):
                getattr(slip, word)(batch.deliveries[0], *(("spoilt",) if word == "reject" else ()))
        rejected = sum(word == "reject through Airflow" for word, _ in both)
        for policy in every_policy:
            check(policy, batch, Outcome(2 - rejected, failed, rejected))


def check(policy: DispositionPolicy, batch: Batch, outcome: Outcome) -> None:
    """What holds for every verdict."""
    verdicts = policy.judge(batch, outcome)

    found = [d for verdict in verdicts for d in verdict.deliveries]
    assert sorted(found, key=batch.deliveries.index) == list(batch.deliveries), "every delivery once"
    assert len({verdict.disposition for verdict in verdicts}) == len(verdicts)
    for verdict in verdicts:
        assert verdict.deliveries == sorted(verdict.deliveries, key=batch.deliveries.index), "in order"

    if outcome == (0, 0, 0):
        assert {verdict.disposition for verdict in verdicts} == {LAPSE}
        return
    unclean = (
        outcome.failed > 0
        or any(not slip.returned for slip in batch.receipts)
        or len(batch.receipts) < outcome.acked + outcome.rejected
    )
    for disposition, some in verdicts:
        assert disposition is not LAPSE
        for one in some:
            matched, rejected, failed = words(one, batch)
            exhausted = policy.max_deliveries is not None and max(1, one.delivery_count) >= policy.max_deliveries
            if disposition is DEAD_LETTER:
                assert policy.can_dead_letter
                assert one.reason
            if disposition is RELEASE:
                assert 0 <= one.release_delay_seconds <= policy.max_release_delay_seconds
                assert not (exhausted and policy.can_dead_letter)
            if unclean or failed:
                assert disposition in (RELEASE, DEAD_LETTER)
                assert disposition is RELEASE or exhausted
            elif disposition is ACCEPT:
                refused = rejected or outcome.rejected
                assert matched or policy.on_unmatched == "accept" or policy.on_reject == "accept"
                if refused and policy.on_reject != "accept":
                    assert policy.reject_quorum == "all"
                    assert matched
            elif disposition is LEAVE:
                assert policy.on_unmatched == "leave"
                assert not matched
                assert not rejected
                assert not outcome.rejected

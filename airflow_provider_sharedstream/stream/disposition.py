"""From the outcome of a batch to what the broker is told. Pure: no clock, no I/O.

The table of :data:`RULES` is what ``docs/guarantees.md`` shows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

from airflow_provider_sharedstream.stream.delivery import Batch, Delivery


class Disposition(Enum):
    """What the broker is told about a delivery."""

    ACCEPT = "accept"
    """Done with: the broker may forget it."""
    RELEASE = "release"
    """Give it back; it comes again after ``delivery.release_delay_seconds``."""
    DEAD_LETTER = "dead_letter"
    """Put it where refused messages go, with ``delivery.reason``."""
    LEAVE = "leave"
    """Nobody wants it: it stays where it is and isn't offered again to the same watchers."""
    LAPSE = "lapse"
    """Say nothing: the lease runs out."""


OnReject = Literal["dead_letter", "accept", "release"]
OnUnmatched = Literal["accept", "dead_letter", "release", "leave"]
RejectQuorum = Literal["any", "all"]

RULES: tuple[tuple[str, str], ...] = (
    (
        "a watcher failed, or was handed the message and never came back",
        "release, with a delay that grows with the delivery count",
    ),
    (
        "rejected, and nobody failed",
        "`on_reject`: dead_letter (default), accept or release; `reject_quorum`: any (default) or all",
    ),
    ("everybody moved on, at least one watcher's event holds it", "accept"),
    (
        "everybody moved on, no watcher matched it",
        "`on_unmatched`: accept (default), dead_letter, release; for a directory leave (default), accept, dead_letter",
    ),
    ("nobody was listening", "nothing: the lease lapses and the broker delivers it again"),
    ("delivered `max_deliveries` times and still not accepted", "dead_letter"),
)
"""Outcome and what is done, in the order in which they are looked at."""


class Outcome(NamedTuple):
    """Airflow's counts for one batch (the fields of ``AdvanceOutcome``)."""

    acked: int
    failed: int
    rejected: int


class Verdict(NamedTuple):
    """What shall happen to some deliveries of one batch."""

    disposition: Disposition
    deliveries: list[Delivery]


@dataclass(frozen=True, slots=True)
class DispositionPolicy:
    """Decides each delivery of a batch by itself.

    :param on_reject: what happens to a rejected delivery.
    :param reject_quorum: ``any``: one watcher's rejection suffices; ``all``: every watcher that had a say on it.
    :param on_unmatched: what happens to a delivery that no watcher matched.
    :param max_deliveries: after so many deliveries, one that is not accepted is dead-lettered; None: never.
    :param release_delay_seconds: the delay before the second delivery; it doubles each time.
    :param max_release_delay_seconds: its upper bound.
    :param can_dead_letter: whether there is a place; without one a dead letter becomes a release, never a drop.
    """

    on_reject: OnReject = "dead_letter"
    reject_quorum: RejectQuorum = "any"
    on_unmatched: OnUnmatched = "accept"
    max_deliveries: int | None = 10
    release_delay_seconds: float = 5.0
    max_release_delay_seconds: float = 900.0
    can_dead_letter: bool = True

    def judge(self, batch: Batch, outcome: Outcome) -> list[Verdict]:
        """Return the verdicts on ``batch``: every delivery once, in order within each verdict."""
        if outcome.acked == outcome.failed == outcome.rejected == 0:
            return [Verdict(Disposition.LAPSE, list(batch.deliveries))]
        receipts = batch.receipts
        unclean = outcome.failed > 0 or any(not receipt.returned for receipt in receipts)
        # Each watcher that Airflow counts as past the batch must have come back for the next one.
        unclean = unclean or len(receipts) < outcome.acked + outcome.rejected
        objections = unclean or outcome.rejected or any(r.rejected or r.failed for r in receipts)
        if not objections and (self.on_unmatched == "accept" or any(r.matched_all for r in receipts)):
            return [Verdict(Disposition.ACCEPT, list(batch.deliveries))]
        verdicts: dict[Disposition, list[Delivery]] = {}
        for delivery in batch.deliveries:
            verdicts.setdefault(self._judge_one(delivery, batch, outcome, unclean), []).append(delivery)
        return [Verdict(disposition, deliveries) for disposition, deliveries in verdicts.items()]

    def _judge_one(self, delivery: Delivery, batch: Batch, outcome: Outcome, unclean: bool) -> Disposition:
        receipts = batch.receipts
        rejections = [(r.watcher, r.rejected[delivery]) for r in receipts if delivery in r.rejected]
        if unclean or any(delivery in r.failed for r in receipts):
            reason = rejections[0][1] if rejections else "a watcher failed on it"
            return self._again(delivery, reason, [watcher for watcher, _ in rejections])
        matched = sum(1 for r in receipts if r.matched_all or delivery in r.matched)
        if rejections and (self.reject_quorum == "any" or not matched):
            watchers = [watcher for watcher, _ in rejections]
            return self._apply(self.on_reject, delivery, rejections[0][1], watchers)
        if outcome.rejected and (self.reject_quorum == "any" or not matched):
            return self._apply(self.on_reject, delivery, "a watcher rejected the batch", [])
        if matched:
            return Disposition.ACCEPT
        return self._apply(self.on_unmatched, delivery, "no watcher matched it", [])

    def _apply(self, wish: str, delivery: Delivery, reason: str, watchers: Iterable[str]) -> Disposition:
        if wish == "accept":
            return Disposition.ACCEPT
        if wish == "leave":
            return Disposition.LEAVE
        if wish == "dead_letter" and self.can_dead_letter:
            return self._dead_letter(delivery, reason, watchers)
        return self._again(delivery, reason, watchers)

    def _again(self, delivery: Delivery, reason: str, watchers: Iterable[str]) -> Disposition:
        count = max(delivery.delivery_count, 1)
        if self.max_deliveries is not None and count >= self.max_deliveries and self.can_dead_letter:
            return self._dead_letter(delivery, f"{reason} (delivered {count} times)", watchers)
        return self.release(delivery)

    def release(self, delivery: Delivery) -> Disposition:
        """Return RELEASE, with the delay for the delivery's count noted on it; whatever the count."""
        # 2**16 seconds are past any bound; the exponent is kept small so that a count of thousands stays a number.
        delay = self.release_delay_seconds * 2 ** min(max(delivery.delivery_count, 1) - 1, 16)
        delivery.release_delay_seconds = min(delay, self.max_release_delay_seconds)
        return Disposition.RELEASE

    @staticmethod
    def _dead_letter(delivery: Delivery, reason: str, watchers: Iterable[str]) -> Disposition:
        delivery.reason = reason
        delivery.rejected_by = tuple(watchers)
        return Disposition.DEAD_LETTER

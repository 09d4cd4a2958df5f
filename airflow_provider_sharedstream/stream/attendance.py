"""A message is settled only after everybody who was to see it has.

Airflow counts who acknowledged a batch among those that were subscribed when it was handed out. That is not enough:

- It drops an event whose trigger was deleted meanwhile, as happens at a deploy, and confirms it all the same.
- A watcher that is started late, anew, or on another triggerer isn't asked.

So the fate of a batch is decided only once a roster has been read later than its outcome came in, and a delivery that
somebody on that roster was to see and has not is released instead of settled. It comes again when they listen. Events
that are stored are with their Dags meanwhile: only the word to the broker waits, for about a second.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition, Outcome, Verdict
from airflow_provider_sharedstream.stream.receipts import Receipt
from airflow_provider_sharedstream.stream.roster import LOOK_SECONDS, Listed, StreamRoster

log = logging.getLogger(__name__)


def unheard(batch: Batch, stream: StreamRoster) -> dict[int, Listed]:
    """Return who is on the roster and was not handed ``batch``."""
    seen = {receipt.trigger_id for receipt in batch.receipts}
    return {n: listed for n, listed in stream.members.items() if n not in seen and n not in batch.excused}


def objections(batch: Batch, stream: StreamRoster) -> dict[Delivery, str]:
    """Return which deliveries of ``batch`` must not be settled yet, and why.

    :param batch: with everybody's receipts.
    :param stream: who belongs to the stream, as read after the outcome of the batch was known.
    """
    if _has_ended(batch, stream):
        return dict.fromkeys(batch.deliveries, "its watchers are no longer there")
    late = [(listed.since, f"{listed.name} has not seen it") for listed in unheard(batch, stream).values()]
    late += [(gone.until, f"what takes the place of {gone.name} has not seen it") for gone in stream.departed.values()]
    dropped = [receipt for receipt in batch.receipts if _is_gone(receipt, batch, stream)]
    found: dict[Delivery, str] = {}
    if late or dropped:
        for delivery in batch.deliveries:
            for since, why in late:
                if delivery.received_at >= since:
                    found[delivery] = why
            for receipt in dropped:
                if receipt.matched_all or delivery in receipt.matched:
                    found[delivery] = f"the event of {receipt.watcher} was not stored, since its trigger is gone"
    return found


def _is_gone(receipt: Receipt, batch: Batch, stream: StreamRoster) -> bool:
    number = receipt.trigger_id
    if number is None or number in batch.excused:
        return False
    # On both lists is a trigger of several assets that has lost one.
    return number not in stream.members or number in stream.departed


def _has_ended(batch: Batch, stream: StreamRoster) -> bool:
    """Whether nobody belongs to the stream any more, so that the roster doesn't say who was to see ``batch``."""
    if stream.members or stream.departed:
        return False
    numbers = {receipt.trigger_id for receipt in batch.receipts if receipt.trigger_id is not None}
    return bool(numbers - batch.excused)


def attended(
    batch: Batch,
    verdicts: Sequence[Verdict],
    stream: StreamRoster,
    release: Callable[[Delivery], Disposition],
) -> tuple[list[Verdict], int]:
    """Return the verdicts with what must not be settled yet released instead, and how many that are.

    :param release: notes on a delivery how long its release is delayed.
    """
    found = objections(batch, stream)
    if not found:
        return list(verdicts), 0
    changed: dict[Disposition, list[Delivery]] = {}
    released: list[Delivery] = []
    for disposition, deliveries in verdicts:
        for delivery in deliveries:
            told = disposition
            if delivery in found and disposition not in (Disposition.RELEASE, Disposition.LAPSE):
                told = release(delivery)
                released.append(delivery)
            changed.setdefault(told, []).append(delivery)
    if released:
        log.info("%d messages are released, to come again: %s", len(released), found[released[0]])
    return [Verdict(disposition, deliveries) for disposition, deliveries in changed.items()], len(released)


class _Waiting(NamedTuple):
    batch: Batch
    outcome: Outcome
    since: float


class Attendance:
    """Keeps the outcomes of batches until a roster shows who was to be there.

    :param cohort: of the stream; None: nobody has to be there.
    :param decide: takes each outcome, in the order in which they came, with who belongs to the stream; None for that:
        there is no roster.
    :param clock: monotonic, the roster's.
    """

    def __init__(
        self,
        cohort: Cohort | None,
        decide: Callable[[Batch, Outcome, StreamRoster | None], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cohort = cohort
        self._decide = decide
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._put = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, batch: Batch, outcome: Outcome) -> None:
        """Take an outcome, at once where there is no roster."""
        self._waiting.append(_Waiting(batch, outcome, self._clock()))
        self._decide_what_is_due()
        self._put.set()

    async def step(self) -> None:
        """Wait for an outcome or a roster, and decide what can be decided."""
        if self._waiting:
            await asyncio.sleep(LOOK_SECONDS)
        else:
            self._put.clear()
            await self._put.wait()
        self._decide_what_is_due()

    async def finish(self, seconds: float) -> None:
        """Wait until nothing is left to decide, or time is up."""
        deadline = self._clock() + seconds
        while self._waiting and self._clock() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            self._decide_what_is_due()

    def _decide_what_is_due(self) -> None:
        sight = None if self._cohort is None else self._cohort.roll_call.look()
        while self._waiting:
            stream: StreamRoster | None = None
            if self._cohort is not None and sight is not None and not sight.blind:
                if sight.roster is None or sight.roster.read_at <= self._waiting[0].since:
                    return
                stream = self._cohort.roll_call.owed(sight.roster)
            batch, outcome, _ = self._waiting.popleft()
            self._decide(batch, outcome, stream)

"""Order within a lane, kept through failures.

Airflow tells the outcomes of one lane in order. Where one of them is not accepted, what lies behind it must not be
accepted either: the broker brings it again after the one that failed, and a watcher sees the lane in order.
"""

from __future__ import annotations

from collections.abc import Hashable

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition

PASSES = frozenset({Disposition.ACCEPT, Disposition.DEAD_LETTER})
"""After these the lane goes on."""


SHORTEST_WAIT_SECONDS = 1.0
"""Least delay of what is given back for being early: it would come again at once, and be early again."""

SWEEP_AT = 1_000
"""Lanes from which on those are looked for that wait for what will never come."""


class _Lane:
    __slots__ = ("due_at", "epoch", "held_at", "open", "told")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.open: set[Delivery] = set()
        """Arrivals of this epoch whose fate isn't sealed."""
        self.held_at: Delivery | None = None
        self.due_at = 0.0
        """When the one that it is held at may return."""
        self.told = False
        """Whether that one has left us, so that it can return."""


class LaneGuard:
    """Holds an ordered lane at its first delivery that was not accepted, and numbers the lanes' epochs.

    An epoch ends with whatever makes older deliveries void: the return of the one that a lane was held at, a
    rebalance, a lost session, a reconnect. A delivery of an ended epoch is forgotten without a word to the broker.

    :param rewinds: the broker brings again what lies behind a released delivery; it need not be released.
    :param stragglers: what lies behind a released delivery may still arrive before it returns.
    :param straggler_grace_seconds: after the release delay and this, an arrival from behind means that the one
        the lane was held at is gone for good (the broker's own dead-letter policy took it).
    """

    def __init__(
        self, *, rewinds: bool = False, stragglers: bool = False, straggler_grace_seconds: float = 30.0
    ) -> None:
        self._rewinds = rewinds
        self._stragglers = stragglers
        self._straggler_grace_seconds = straggler_grace_seconds
        self._lanes: dict[Hashable, _Lane] = {}
        # Lanes come and go by the thousand and only those with something open are kept, so epochs
        # are drawn from one counter: a lane that comes anew is never given an old number.
        self._epochs = 0
        self._void_before = 0
        self._sweep_at = SWEEP_AT

    def __len__(self) -> int:
        return len(self._lanes)

    def arrive(self, delivery: Delivery, now: float) -> bool:
        """Note an arrival; return False where it must not go to the watchers yet, since its lane waits for another.

        Where the broker doesn't bring it again by itself it has to be given back, after the delay that is noted on it.
        """
        if delivery.lane is None:
            delivery.epoch = self._epochs
            return True
        lane = self._lanes.get(delivery.lane)
        if lane is None:
            self._sweep(now)
            lane = self._lanes[delivery.lane] = _Lane(self._next_epoch())
        early = lane.held_at is not None and not self._returns(lane.held_at, delivery, lane, now)
        if lane.held_at is not None and not early:
            lane.held_at = None
            lane.open.clear()
            lane.epoch = self._next_epoch()
        delivery.epoch = lane.epoch
        lane.open.add(delivery)
        if early:
            delivery.release_delay_seconds = max(SHORTEST_WAIT_SECONDS, lane.due_at - now)
        return not early

    def _returns(self, held: Delivery, delivery: Delivery, lane: _Lane, now: float) -> bool:
        """Whether the arrival of ``delivery`` means that the broker has gone back to where the lane is held."""
        if not self._rewinds and any(not one.lease_lost for one in lane.open):
            # What is still ours wouldn't come again before what lies behind it.
            return False
        return delivery.id == held.id or not self._still_waits(lane, now)

    def _still_waits(self, lane: _Lane, now: float) -> bool:
        # What it is held at can't have come back before it has gone.
        return not lane.told or (self._stragglers and now < lane.due_at + self._straggler_grace_seconds)

    def is_void(self, delivery: Delivery) -> bool:
        """Whether ``delivery`` belongs to an ended epoch."""
        if delivery.lane is None:
            return delivery.epoch < self._void_before
        lane = self._lanes.get(delivery.lane)
        return lane is None or lane.epoch != delivery.epoch

    def judge(self, delivery: Delivery, disposition: Disposition, now: float) -> Disposition:
        """Return what may really be done with a delivery; hold its lane if it does not pass. Call in lane order."""
        if self.is_void(delivery):
            return Disposition.LAPSE
        if delivery.lane is None:
            return disposition
        lane = self._lanes[delivery.lane]
        if lane.held_at is not None and lane.held_at is not delivery:
            if self._rewinds:
                return Disposition.LAPSE
            # As long as the one before it: it can't come sooner anyway, and would only be counted up.
            delivery.release_delay_seconds = 0.0
            return Disposition.RELEASE
        if disposition not in PASSES:
            self.hold(delivery, now)
        return disposition

    def hold(self, delivery: Delivery, now: float) -> None:
        """Hold the lane of ``delivery`` at it, if it has one and isn't held already."""
        lane = None if delivery.lane is None else self._lanes.get(delivery.lane)
        if lane is not None and lane.held_at is None and lane.epoch == delivery.epoch:
            lane.held_at = delivery
            lane.told = False
            lane.due_at = now + delivery.release_delay_seconds

    def leave(self, delivery: Delivery, now: float) -> None:
        """Note that the fate of ``delivery`` is sealed; a lane that nothing depends on any more is forgotten."""
        lane = None if delivery.lane is None else self._lanes.get(delivery.lane)
        if lane is None or lane.epoch != delivery.epoch:
            return
        lane.open.discard(delivery)
        if delivery is lane.held_at:
            lane.told = True
            lane.due_at = now + delivery.release_delay_seconds
        # Without stragglers the next arrival is the one that the lane waits for, in any case.
        if not lane.open and (lane.held_at is None or (lane.told and not self._stragglers)):
            del self._lanes[delivery.lane]

    def end_epoch(self, lanes: frozenset[Hashable] | None = None) -> None:
        """Make void what has arrived on ``lanes`` so far; None: on every lane, and what has none."""
        self._epochs += 1
        if lanes is None:
            self._lanes.clear()
            self._void_before = self._epochs
        else:
            for lane in lanes:
                self._lanes.pop(lane, None)

    def _next_epoch(self) -> int:
        self._epochs += 1
        return self._epochs

    def _sweep(self, now: float) -> None:
        """Forget lanes whose message went elsewhere: to another consumer, or to the broker's own dead letters."""
        if len(self._lanes) < self._sweep_at:
            return
        for key, lane in list(self._lanes.items()):
            if not lane.open and not self._still_waits(lane, now):
                del self._lanes[key]
        self._sweep_at = max(SWEEP_AT, 2 * len(self._lanes))

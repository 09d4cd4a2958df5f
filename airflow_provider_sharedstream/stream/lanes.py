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


class _Lane:
    __slots__ = ("epoch", "held_at", "open", "straggling_until")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.open = 0
        self.held_at: Delivery | None = None
        self.straggling_until = 0.0


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

    def arrive(self, delivery: Delivery, now: float) -> bool:
        """Note an arrival; return False where it must be given back at once since its lane waits for another."""
        if delivery.lane is None:
            delivery.epoch = self._epochs
            return True
        lane = self._lanes.get(delivery.lane)
        if lane is None:
            lane = self._lanes[delivery.lane] = self._new_lane()
        elif lane.held_at is not None:
            early = self._stragglers and now < lane.straggling_until
            if early and delivery.id != lane.held_at.id:
                return False
            lane.held_at = None
            lane.open = 0
            self._epochs += 1
            lane.epoch = self._epochs
        delivery.epoch = lane.epoch
        lane.open += 1
        return True

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
            lane.straggling_until = now + delivery.release_delay_seconds + self._straggler_grace_seconds

    def leave(self, delivery: Delivery) -> None:
        """Note that the fate of ``delivery`` is sealed; a lane with nothing open and not held is forgotten."""
        lane = None if delivery.lane is None else self._lanes.get(delivery.lane)
        if lane is None or lane.epoch != delivery.epoch:
            return
        lane.open -= 1
        if lane.open <= 0 and lane.held_at is None:
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

    def _new_lane(self) -> _Lane:
        self._epochs += 1
        return _Lane(self._epochs)

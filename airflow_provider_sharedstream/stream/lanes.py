"""Order within a lane, kept through failures.

Airflow tells the outcomes of one lane in order. Where one of them is not accepted, what lies behind it must not be
accepted either: the broker brings it again after the one that failed, and a watcher sees the lane in order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition

PASSES = frozenset({Disposition.ACCEPT, Disposition.DEAD_LETTER})
"""After these the lane goes on."""


SHORTEST_WAIT_SECONDS = 1.0
"""Least delay of what is given back for being early: it would come again at once, and be early again."""

SWEEP_AT = 1_000
"""Lanes from which on those are looked for that wait for what will never come."""


class _Lane:
    __slots__ = ("due_at", "held_at", "held_number", "open", "told")

    def __init__(self) -> None:
        self.open: dict[Delivery, int] = {}
        """Arrivals whose fate isn't sealed and that aren't void, numbered in their order."""
        self.held_at: Delivery | None = None
        self.held_number = 0
        self.due_at = 0.0
        """When the one that it is held at may return."""
        self.told = False
        """Whether that one has left us, so that it can return."""


class LaneGuard:
    """Holds an ordered lane at its first delivery that was not accepted, and knows which deliveries are void.

    The return of the one that a lane was held at makes void what arrived behind it before. A rebalance, a lost session
    or a reconnect ends an epoch and makes void all that has arrived. What is void is forgotten without a word to the
    broker.

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
        # Lanes come and go by the thousand, and only those are kept that something depends on.
        self._lanes: dict[Hashable, _Lane] = {}
        self._arrivals = 0
        self._epoch = 0
        self._sweep_at = SWEEP_AT

    def __len__(self) -> int:
        return len(self._lanes)

    def arrive(self, delivery: Delivery, now: float) -> bool:
        """Note an arrival; return False where it must not go to the watchers yet, since its lane waits for another.

        Where the broker doesn't bring it again by itself it has to be given back, after the delay that is noted on it.
        """
        delivery.epoch = self._epoch
        if delivery.lane is None:
            return True
        lane = self._lanes.get(delivery.lane)
        if lane is None:
            self._sweep(now)
            lane = self._lanes[delivery.lane] = _Lane()
        early = lane.held_at is not None and delivery.id != lane.held_at.id and self._still_waits(lane, now)
        if lane.held_at is not None and not early:
            # What lies before it is as good as it was.
            lane.open = {one: number for one, number in lane.open.items() if number < lane.held_number}
            lane.held_at = None
        self._arrivals += 1
        lane.open[delivery] = self._arrivals
        if early:
            delivery.release_delay_seconds = max(SHORTEST_WAIT_SECONDS, lane.due_at - now)
        return not early

    def arrive_together(self, deliveries: Sequence[Delivery], now: float) -> bool:
        """Note arrivals of one lane at once; return False, with nothing noted, where each has to be looked at."""
        key = deliveries[0].lane
        if key is not None:
            lane = self._lanes.get(key)
            if lane is None:
                self._sweep(now)
                lane = self._lanes[key] = _Lane()
            elif lane.held_at is not None:
                return False
            first = self._arrivals + 1
            self._arrivals += len(deliveries)
            lane.open.update(zip(deliveries, range(first, self._arrivals + 1), strict=True))
        for delivery in deliveries:
            delivery.epoch = self._epoch
        return True

    def _still_waits(self, lane: _Lane, now: float) -> bool:
        # What it is held at can't have come back before it has gone.
        return not lane.told or (self._stragglers and now < lane.due_at + self._straggler_grace_seconds)

    def is_void(self, delivery: Delivery) -> bool:
        """Whether ``delivery`` must not be settled any more. Not to be asked once its fate is sealed."""
        if delivery.lane is None:
            return delivery.epoch < self._epoch
        lane = self._lanes.get(delivery.lane)
        return lane is None or delivery not in lane.open

    def none_void(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether all of one lane may still be settled."""
        key = deliveries[0].lane
        if key is None:
            return not any(map(self.is_void, deliveries))
        lane = self._lanes.get(key)
        return lane is not None and all(map(lane.open.__contains__, deliveries))

    def passes(self, deliveries: Sequence[Delivery]) -> bool:
        """Whether the lane goes on if all of these are accepted, or dead-lettered: it isn't held, and none is void."""
        lane = self._lanes.get(deliveries[0].lane)
        return lane is not None and lane.held_at is None and self.none_void(deliveries)

    def judge(self, delivery: Delivery, disposition: Disposition, now: float) -> Disposition:
        """Return what may really be done with a delivery; hold its lane if it does not pass. Call in lane order."""
        if self.is_void(delivery):
            return Disposition.LAPSE
        if delivery.lane is None:
            return disposition
        lane = self._lanes[delivery.lane]
        if lane.held_at is not None and lane.open[delivery] > lane.held_number:
            if self._rewinds:
                return Disposition.LAPSE
            # As long as the one before it: it can't come sooner anyway, and would only be counted up.
            delivery.release_delay_seconds = 0.0
            return Disposition.RELEASE
        if disposition not in PASSES:
            self.hold(delivery, now)
        return disposition

    def hold(self, delivery: Delivery, now: float) -> None:
        """Hold the lane of ``delivery`` at it, if it has one and isn't held before it already."""
        if delivery.lane is None or self.is_void(delivery):
            return
        lane = self._lanes[delivery.lane]
        number = lane.open[delivery]
        if lane.held_at is None or number < lane.held_number:
            lane.held_at = delivery
            lane.held_number = number
            lane.told = False
            lane.due_at = now + delivery.release_delay_seconds

    def leave(self, delivery: Delivery, now: float) -> None:
        """Note that the fate of ``delivery`` is sealed; a lane that nothing depends on any more is forgotten."""
        lane = None if delivery.lane is None else self._lanes.get(delivery.lane)
        if lane is None or lane.open.pop(delivery, None) is None:
            return
        if delivery is lane.held_at:
            lane.told = True
            lane.due_at = now + delivery.release_delay_seconds
        # Without stragglers the next arrival is the one that the lane waits for, in any case.
        if not lane.open and (lane.held_at is None or (lane.told and not self._stragglers)):
            del self._lanes[delivery.lane]

    def leave_together(self, deliveries: Sequence[Delivery], now: float) -> None:
        """Note that the fates of deliveries of one lane are sealed."""
        key = deliveries[0].lane
        lane = None if key is None else self._lanes.get(key)
        if lane is None:
            return
        if lane.held_at is not None:
            for delivery in deliveries:
                self.leave(delivery, now)
            return
        for delivery in deliveries:
            lane.open.pop(delivery, None)
        if not lane.open:
            del self._lanes[key]

    def end_epoch(self, lanes: frozenset[Hashable] | None = None) -> None:
        """Make void what has arrived on ``lanes`` so far; None: on every lane, and what has none."""
        if lanes is None:
            self._epoch += 1
            self._lanes.clear()
        else:
            for lane in lanes:
                self._lanes.pop(lane, None)

    def _sweep(self, now: float) -> None:
        """Forget lanes whose message went elsewhere: to another consumer, or to the broker's own dead letters."""
        if len(self._lanes) < self._sweep_at:
            return
        for key, lane in list(self._lanes.items()):
            if not lane.open and not self._still_waits(lane, now):
                del self._lanes[key]
        self._sweep_at = max(SWEEP_AT, 2 * len(self._lanes))

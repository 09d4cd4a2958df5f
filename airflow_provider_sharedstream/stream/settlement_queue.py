"""What the broker is still to be told, and in which order it may be. No clock, no I/O."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition


class _Item:
    __slots__ = ("at", "delivery", "disposition")

    def __init__(self, disposition: Disposition, delivery: Delivery, at: float) -> None:
        self.disposition = disposition
        self.delivery = delivery
        self.at = at


class SettlementQueue:
    """Lines of deliveries: one line a lane, and one for each delivery that has none.

    Only the front of a line may be told, whatever lies behind it, and nothing more of the line before the call that
    tells it has ended. So a lane keeps its order through retries, delays, and different things to tell.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[_Item]] = {}
        self._fronts: dict[Disposition, dict[Hashable, None]] = {}
        """Lines whose front may be told now, by what is to be told."""
        self._timers: list[tuple[float, int, Hashable]] = []
        self._order = itertools.count()
        self._busy: set[Hashable] = set()
        self._now = 0.0

    def put(self, disposition: Disposition, delivery: Delivery, at: float = 0.0) -> None:
        """Put a delivery at the end of its line.

        :param at: when it may be told.
        """
        line = _line(delivery)
        items = self._lines.get(line)
        if items is None:
            items = self._lines[line] = deque()
        items.append(_Item(disposition, delivery, at))
        if len(items) == 1:
            self._offer(line)

    def put_back(self, disposition: Disposition, delivery: Delivery, at: float) -> None:
        """Put a delivery that could not be told at the front of its line again: of several, the last one first."""
        line = _line(delivery)
        self._withdraw(line)
        self._lines.setdefault(line, deque()).appendleft(_Item(disposition, delivery, at))
        self._offer(line)

    def next_chunk(
        self, size: int, now: float, held: Container[Disposition] = ()
    ) -> tuple[Disposition, list[Delivery]] | None:
        """Take out deliveries that are all told the same; their lines are busy until :meth:`ended`.

        :param held: what may not be told at present.
        """
        self._look_at_timers(now)
        for disposition, lines in self._fronts.items():
            if disposition in held:
                continue
            chunk: list[Delivery] = []
            while lines and len(chunk) < size:
                line = next(iter(lines))
                del lines[line]
                self._busy.add(line)
                items = self._lines[line]
                while items and len(chunk) < size and items[0].disposition is disposition and items[0].at <= now:
                    chunk.append(items.popleft().delivery)
            if chunk:
                # What has had a turn goes behind the others.
                self._fronts[disposition] = self._fronts.pop(disposition)
                return disposition, chunk
        return None

    def ended(self, chunk: Iterable[Delivery]) -> None:
        """Note that a call has ended; what of the chunk has to be told again was put back before."""
        for line in {_line(delivery) for delivery in chunk}:
            self._busy.discard(line)
            self._offer(line)

    def may_tell(self, now: float, held: Container[Disposition] = ()) -> bool:
        """Whether :meth:`next_chunk` would return something."""
        self._look_at_timers(now)
        return any(lines and disposition not in held for disposition, lines in self._fronts.items())

    def next_at(self) -> float | None:
        """When the next line may be told that may not yet; None: never by time alone."""
        return self._timers[0][0] if self._timers else None

    def hasten(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        """Let what waits for its time go now; return what did wait."""
        hastened: list[Delivery] = []
        for line, items in self._lines.items():
            found = [item for item in items if item.at > self._now and which(item.delivery)]
            for item in found:
                item.at = self._now
                hastened.append(item.delivery)
            if found:
                self._offer(line)
        return hastened

    def take(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out deliveries that aren't in a call."""
        taken: list[Delivery] = []
        for line, items in list(self._lines.items()):
            if found := [item.delivery for item in items if which(item.delivery)]:
                taken += found
                self._withdraw(line)
                self._lines[line] = deque(item for item in items if not which(item.delivery))
                self._offer(line)
        return taken

    def take_behind(self, delivery: Delivery) -> list[Delivery]:
        """Take out the whole line of ``delivery``, which was its front."""
        line = _line(delivery)
        self._withdraw(line)
        items = self._lines.get(line, deque())
        taken = [item.delivery for item in items]
        items.clear()
        return taken

    def has(self, lane: Hashable) -> bool:
        """Whether anything of a lane waits, or is in a call."""
        return (lane,) in self._lines

    def __len__(self) -> int:
        """Return how many lines there are, those included whose last delivery is in a call."""
        return len(self._lines)

    def _offer(self, line: Hashable) -> None:
        """Put a line where its front says; forget it when it is empty."""
        if line in self._busy:
            return
        items = self._lines.get(line)
        if not items:
            self._lines.pop(line, None)
        elif items[0].at <= self._now:
            self._fronts.setdefault(items[0].disposition, {})[line] = None
        else:
            heapq.heappush(self._timers, (items[0].at, next(self._order), line))

    def _withdraw(self, line: Hashable) -> None:
        for lines in self._fronts.values():
            lines.pop(line, None)

    def _look_at_timers(self, now: float) -> None:
        self._now = max(self._now, now)
        while self._timers and self._timers[0][0] <= self._now:
            _, _, line = heapq.heappop(self._timers)
            self._offer(line)


def _line(delivery: Delivery) -> Hashable:
    return delivery if delivery.lane is None else (delivery.lane,)

"""What the broker is still to be told, and in which order it may be. No clock, no I/O."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from operator import attrgetter

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition


class _Run:
    """Neighbours in a line that are told the same, from the same time on."""

    __slots__ = ("at", "deliveries", "disposition")

    def __init__(self, disposition: Disposition, deliveries: Iterable[Delivery], at: float) -> None:
        self.disposition = disposition
        self.deliveries = deque(deliveries)
        self.at = at


class SettlementQueue:
    """Lines of deliveries: one line a lane, and one for each delivery that has none.

    Only the front of a line may be told, whatever lies behind it, and nothing more of the line before the call that
    tells it has ended. So a lane keeps its order through retries, delays, and different things to tell.
    """

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[_Run]] = {}
        self._fronts: dict[Disposition, dict[Hashable, None]] = {}
        """Lines whose front may be told now, by what is to be told."""
        self._timers: list[tuple[float, int, Hashable]] = []
        self._order = itertools.count()
        self._busy: set[Hashable] = set()
        self._now = 0.0

    def put(self, disposition: Disposition, deliveries: Sequence[Delivery], at: float = 0.0) -> None:
        """Put deliveries at the end of their line.

        :param deliveries: of one lane, or a single one.
        :param at: when they may be told.
        """
        line = _line(deliveries[0])
        waiting = self._lines.get(line)
        if waiting is None:
            waiting = self._lines[line] = deque()
        waiting.append(_Run(disposition, deliveries, at))
        if len(waiting) == 1:
            self._offer(line)

    def put_back(self, disposition: Disposition, delivery: Delivery, at: float) -> None:
        """Put a delivery that could not be told at the front of its line again: of several, the last one first."""
        line = _line(delivery)
        self._withdraw(line)
        self._lines.setdefault(line, deque()).appendleft(_Run(disposition, [delivery], at))
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
                waiting = self._lines[line]
                while waiting and len(chunk) < size and waiting[0].disposition is disposition and waiting[0].at <= now:
                    front = waiting[0].deliveries
                    if len(front) <= size - len(chunk):
                        chunk += front
                        waiting.popleft()
                    else:
                        chunk += [front.popleft() for _ in range(size - len(chunk))]
            if chunk:
                # What has had a turn goes behind the others.
                self._fronts[disposition] = self._fronts.pop(disposition)
                return disposition, chunk
        return None

    def ended(self, chunk: Sequence[Delivery]) -> None:
        """Note that a call has ended; what of the chunk has to be told again was put back before."""
        for line in _lines(chunk):
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
        for line, waiting in self._lines.items():
            found = [run for run in waiting if run.at > self._now and any(map(which, run.deliveries))]
            for run in found:
                run.at = self._now
                hastened += run.deliveries
            if found:
                self._offer(line)
        return hastened

    def take(self, which: Callable[[Delivery], bool]) -> list[Delivery]:
        """Take out deliveries that aren't in a call."""
        taken: list[Delivery] = []
        for line, waiting in list(self._lines.items()):
            if found := [delivery for run in waiting for delivery in run.deliveries if which(delivery)]:
                taken += found
                gone = set(found)
                self._withdraw(line)
                for run in waiting:
                    run.deliveries = deque(delivery for delivery in run.deliveries if delivery not in gone)
                self._lines[line] = deque(run for run in waiting if run.deliveries)
                self._offer(line)
        return taken

    def take_behind(self, delivery: Delivery) -> list[Delivery]:
        """Take out the whole line of ``delivery``, which was its front."""
        line = _line(delivery)
        self._withdraw(line)
        waiting = self._lines.get(line, deque())
        taken = [delivery for run in waiting for delivery in run.deliveries]
        waiting.clear()
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
        waiting = self._lines.get(line)
        if not waiting:
            self._lines.pop(line, None)
        elif waiting[0].at <= self._now:
            self._fronts.setdefault(waiting[0].disposition, {})[line] = None
        else:
            heapq.heappush(self._timers, (waiting[0].at, next(self._order), line))

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


def _lines(deliveries: Sequence[Delivery]) -> Iterator[Hashable]:
    lanes = set(map(attrgetter("lane"), deliveries))
    if None in lanes:
        yield from (delivery for delivery in deliveries if delivery.lane is None)
    yield from ((lane,) for lane in lanes if lane is not None)

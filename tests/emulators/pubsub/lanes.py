"""In which order the messages of a subscription are handed out: one lane for those without a key, one for each key."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Protocol

from google.pubsub_v1.types import PubsubMessage


@dataclass(eq=False)
class Holder:
    """Whoever deliveries go to: a stream, or one pull. Counts what flow control limits."""

    messages: int = 0
    bytes: int = 0


@dataclass(eq=False)
class Lease:
    """The latest delivery of an entry, for as long as it may be settled."""

    ack_id: str
    holder: Holder
    deadline: float


@dataclass(eq=False)
class Entry:
    """A message that this subscription still owes."""

    message: PubsubMessage
    number: int
    """Place in the order of publication."""
    size: int
    lane: Lane
    failures: int = 0
    """Negative acknowledgements and expired leases."""
    ack_id: str = ""
    """The latest one given out."""
    lease: Lease | None = None
    acknowledged: bool = False
    """Kept all the same, because an earlier message of its key isn't acknowledged yet."""
    dead: bool = False
    """In the dead letters, so not to be repeated."""


class Lane(Protocol):
    @property
    def owed(self) -> int:
        """Messages that are not acknowledged."""

    def add(self, entry: Entry) -> None: ...

    def head(self, holder: Holder, now: float) -> Entry | None:
        """What `holder` may have next."""

    def hand_out(self, holder: Holder, now: float) -> Entry:
        """Take that."""

    def put_back(self, entry: Entry, not_before: float) -> list[Entry]:
        """Deliver again, not before that time; returns the deliveries that this makes void."""

    def remove(self, entry: Entry) -> None:
        """It is owed no longer."""

    def wakes_at(self, now: float) -> float | None:
        """When a waiting time ends, unless something else happens first."""


@dataclass(eq=False)
class UnorderedLane:
    """Oldest first, each for itself."""

    owed: int = 0
    _ready: list[tuple[int, Entry]] = field(default_factory=list)
    _waiting: list[tuple[float, int, Entry]] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        self.owed += 1
        heapq.heappush(self._ready, (entry.number, entry))

    def head(self, holder: Holder, now: float) -> Entry | None:
        while self._waiting and self._waiting[0][0] <= now:
            heapq.heappush(self._ready, heapq.heappop(self._waiting)[1:])
        while self._ready and self._ready[0][1].acknowledged:
            heapq.heappop(self._ready)
        return self._ready[0][1] if self._ready else None

    def hand_out(self, holder: Holder, now: float) -> Entry:
        return heapq.heappop(self._ready)[1]

    def put_back(self, entry: Entry, not_before: float) -> list[Entry]:
        heapq.heappush(self._waiting, (not_before, entry.number, entry))
        return []

    def remove(self, entry: Entry) -> None:
        # An entry whose lease ran out may be acknowledged late, while it lies in a heap: `head` steps over it.
        entry.acknowledged = True
        self.owed -= 1

    def wakes_at(self, now: float) -> float | None:
        return self._waiting[0][0] if self._waiting else None


@dataclass(eq=False)
class KeyLane:
    """Messages of one ordering key: to one holder at a time, and from the failed one on all over again."""

    entries: list[Entry] = field(default_factory=list)
    """All that is owed, and what was acknowledged behind it."""
    _next: int = 0
    _not_before: float = 0.0

    @property
    def owed(self) -> int:
        return sum(not entry.acknowledged for entry in self.entries)

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)

    def head(self, holder: Holder, now: float) -> Entry | None:
        while self._next < len(self.entries) and self.entries[self._next].acknowledged:
            self._next += 1
        if self._next == len(self.entries) or now < self._not_before:
            return None
        for place in range(self._next - 1, -1, -1):
            if (lease := self.entries[place].lease) is not None:
                return self.entries[self._next] if lease.holder is holder else None
        return self.entries[self._next]

    def hand_out(self, holder: Holder, now: float) -> Entry:
        self._next += 1
        return self.entries[self._next - 1]

    def put_back(self, entry: Entry, not_before: float) -> list[Entry]:
        place = self.entries.index(entry)
        void = self.entries[place + 1 : self._next]
        for later in void:
            # As the service does it: what follows is repeated too, even where it was acknowledged.
            later.acknowledged = later.dead
        self._next, self._not_before = place, not_before
        return void

    def remove(self, entry: Entry) -> None:
        entry.acknowledged = True
        done = 0
        while done < len(self.entries) and self.entries[done].acknowledged:
            done += 1
        del self.entries[:done]
        self._next = max(0, self._next - done)

    def wakes_at(self, now: float) -> float | None:
        return self._not_before if self._not_before > now and self.entries else None

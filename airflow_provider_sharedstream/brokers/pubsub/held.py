"""Messages that came and weren't asked for yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any


class Held:
    """A message that came.

    :param received: ReceivedMessage, as raw protobuf.
    :param earliest: monotonic time before which its lease can't have begun.
    :param latest: monotonic time by which it must have begun.
    """

    __slots__ = ("earliest", "latest", "received", "size")

    def __init__(self, received: Any, earliest: float, latest: float) -> None:
        self.received = received
        self.earliest = earliest
        self.latest = latest
        self.size: int = received.ByteSize()

    def renewed(self, at: float) -> None:
        """Note that the lease was renewed."""
        self.earliest = self.latest = at

    def lost(self) -> None:
        """Note that it is no longer ours."""
        self.earliest = self.latest = float("-inf")


class HeldMessages:
    """A line of them, in the order in which they came.

    :param most: messages from which on it is full.
    :param most_bytes: bytes from which on it is full.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._line: deque[Held] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Held]:
        return iter(self._line)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should come for now."""
        return len(self._line) >= self._most or self._bytes >= self._most_bytes

    def add(self, held: Held) -> None:
        """Put a message at the end."""
        self._line.append(held)
        self._bytes += held.size

    def take(self, most: int, leases_begun_after: float) -> list[Held]:
        """Take up to so many from the front. Those whose lease must have begun before are dropped: it is over, and
        they come again by themselves.
        """
        taken: list[Held] = []
        while self._line and len(taken) < most:
            held = self._line.popleft()
            self._bytes -= held.size
            if held.latest > leases_begun_after:
                taken.append(held)
        return taken

    def put_back(self, taken: Sequence[Held]) -> None:
        """Put what was taken at the front again."""
        self._line.extendleft(reversed(taken))
        self._bytes += sum(held.size for held in taken)

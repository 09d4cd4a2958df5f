"""Messages that came and weren't asked for yet."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.pubsub.client import PubSubClient
from airflow_provider_sharedstream.stream.errors import LeaseLost

log = logging.getLogger(__name__)

HELD_PER_PERMIT = 4
"""The line is full at so many times ``max_in_flight``: where flow control is ignored (Google's emulator), all of a
backlog comes at once.
"""
RENEW_AT = 0.25
"""Of its life, from which on the lease of what is held is renewed."""
GIVE_BACK_SECONDS = 2.0


class Held:
    """A message that came.

    :param received: ReceivedMessage, as raw protobuf.
    :param since: monotonic time before which its lease can't have begun.
    """

    __slots__ = ("received", "since", "size")

    def __init__(self, received: Any, since: float) -> None:
        self.received = received
        self.since = since
        self.size: int = received.ByteSize()


class HeldMessages:
    """A line of them, in the order in which they came, with their leases.

    :param client: the channel.
    :param path: full name of the subscription.
    :param lease_seconds: for how long each is ours.
    :param max_messages: most messages that the service was asked to let us have.
    :param max_bytes: bytes from which on the line is full.
    """

    def __init__(
        self, client: PubSubClient, path: str, *, lease_seconds: int, max_messages: int, max_bytes: int
    ) -> None:
        self._client = client
        self._path = path
        self._lease_seconds = lease_seconds
        self._most = HELD_PER_PERMIT * max_messages
        self._most_bytes = max_bytes
        self._line: deque[Held] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Whether nothing more should come for now."""
        return len(self._line) >= self._most or self._bytes >= self._most_bytes

    def add(self, held: Held) -> None:
        """Put a message at the end."""
        self._line.append(held)
        self._bytes += held.size

    def take(self, most: int) -> list[Held]:
        """Take up to so many from the front. One whose lease may be over is dropped: it comes again by itself."""
        now = time.monotonic()
        taken: list[Held] = []
        while self._line and len(taken) < most:
            held = self._line.popleft()
            self._bytes -= held.size
            if now - held.since < self._lease_seconds:
                taken.append(held)
        return taken

    def put_back(self, taken: Sequence[Held]) -> None:
        """Put what was taken at the front again."""
        self._line.extendleft(reversed(taken))
        self._bytes += sum(held.size for held in taken)

    async def renew(self) -> None:
        """Renew the leases that are due."""
        now = time.monotonic()
        due = [held for held in self._line if now - held.since >= RENEW_AT * self._lease_seconds]
        if not due:
            return
        try:
            failures = await self._client.set_deadline(self._path, ack_ids(due), self._lease_seconds)
        except Exception as error:
            # It is tried again; at the worst the leases run out, and then what is held isn't handed out.
            log.debug("Leases of %d held messages could not be renewed: %s", len(due), error)
            return
        for held in due:
            failure = failures.get(held.received.ack_id)
            if failure is None:
                held.since = now
            elif isinstance(failure, LeaseLost):
                held.since = float("-inf")

    async def give_back(self) -> None:
        """Give all of it back, for whoever else wants it."""
        line, self._line, self._bytes = self._line, deque(), 0
        if not line:
            return
        giving = self._client.set_deadline(self._path, ack_ids(line), 0)
        try:
            await asyncio.wait_for(giving, GIVE_BACK_SECONDS)
        except Exception as error:
            log.debug("%d messages could not be given back, and come when their leases run out: %s", len(line), error)


def ack_ids(some: Sequence[Held]) -> list[str]:
    """Return the ack id of each."""
    return [held.received.ack_id for held in some]

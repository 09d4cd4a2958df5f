"""What all connections share: the namespace, the keys, the faults that were ordered, and what was counted."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.emulators.service_bus.namespace import Namespace
from tests.emulators.service_bus.refusals import Refusal
from tests.emulators.service_bus.tokens import Key, KeyRing

if TYPE_CHECKING:
    from tests.emulators.service_bus.connection import ClientConnection

log = logging.getLogger(__name__)

SWEEP_SECONDS = 0.05
TICK_SECONDS = 1.0


@dataclass(slots=True)
class Counters:
    """Counted since the start."""

    connections_opened: int = 0
    senders_opened: int = 0
    receivers_opened: int = 0
    delivered: int = 0
    settled: int = 0
    locks_renewed: int = 0


@dataclass(slots=True)
class Faults:
    """What is to go wrong."""

    settlements: deque[Refusal] = field(default_factory=deque)
    lost_replies: int = 0

    def check_settlement(self) -> None:
        """Raises Refusal for as many settlements as were ordered to fail; those are not carried out."""
        if self.settlements:
            raise self.settlements.popleft()

    def lose_reply(self) -> bool:
        """Whether this settlement, which was carried out, is to go without an answer."""
        if self.lost_replies == 0:
            return False
        self.lost_replies -= 1
        return True

    def forget(self) -> int:
        """Let nothing more go wrong; returns what would have."""
        left = len(self.settlements) + self.lost_replies
        self.settlements.clear()
        self.lost_replies = 0
        return left


class Broker:
    """The server without its socket. Used in one event loop.

    :param keys: shared access policies by name.
    """

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self.namespace = Namespace()
        self.keys = KeyRing(keys)
        self.faults = Faults()
        self.counters = Counters()
        self.connections: set[ClientConnection] = set()

    def connection_opened(self, connection: ClientConnection) -> None:
        self.connections.add(connection)
        self.counters.connections_opened += 1

    def connection_closed(self, connection: ClientConnection) -> None:
        self.connections.discard(connection)

    async def keep_time(self) -> None:
        """Let locks, sessions, schedules and tokens run out; ends by being cancelled."""
        loop = asyncio.get_running_loop()
        next_tick = loop.time() + TICK_SECONDS
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for queue in self.namespace.queues():
                try:
                    queue.sweep()
                except Exception:
                    log.exception("time stands still in %s", queue.path)
            if loop.time() >= next_tick:
                next_tick = loop.time() + TICK_SECONDS
                for connection in list(self.connections):
                    connection.tick()

"""Who must be listening before a message is taken.

Filters of this process join the cohort of their stream's key when they start to listen, and leave it when they stop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Hashable
from weakref import WeakValueDictionary

from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

CLAIM_LOOK_SECONDS = 0.5
CLOSING_SECONDS = 30.0
"""How long a stream may take to close before another one on the same source says that it waits for it."""


class Cohort:
    """The watchers of one stream in this process.

    :param key: the shared-stream key.
    """

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.changes = 0
        """Counts joins: a source that left something unmatched offers it again to newcomers."""
        self._members: dict[object, str] = {}
        self._troubles: dict[object, str] = {}
        self._introductions: dict[object, Hashable] = {}
        self._changed = asyncio.Event()
        self._joined_at = 0.0
        self._said: str | None = None

    def join(self, watcher: str, trouble: str | None = None, introduction: Hashable = None) -> object:
        """Note a watcher; return the token with which it leaves.

        :param watcher: its name, for logs.
        :param trouble: why it can't judge messages; the stream is held while it stays.
        :param introduction: what the source's adapter is told of it.
        """
        token = object()
        self._members[token] = watcher
        self._introductions[token] = introduction
        if trouble is not None:
            self._troubles[token] = trouble
        self.changes += 1
        self._joined_at = time.monotonic()
        self._changed.set()
        return token

    def leave(self, token: object) -> None:
        """Note that a watcher has left."""
        self._members.pop(token, None)
        self._troubles.pop(token, None)
        self._introductions.pop(token, None)
        self._changed.set()

    def __len__(self) -> int:
        return len(self._members)

    @property
    def introductions(self) -> frozenset[Hashable]:
        """What those who listen now said of themselves."""
        return frozenset(self._introductions.values())

    @property
    def trouble(self) -> str | None:
        """Why the stream has to be held, or None."""
        for token, trouble in self._troubles.items():
            return f"{self._members[token]}: {trouble}"
        return None

    @property
    def complete(self) -> bool:
        """Whether messages may be taken: somebody listens, and everybody who does can judge."""
        return bool(self._members) and not self._troubles

    async def ready(self, join_grace_seconds: float = 0.0) -> None:
        """Wait until messages may be taken.

        :param join_grace_seconds: also wait until so long has passed since the last watcher joined, at most
            three times as long: Airflow starts the watchers of a stream one after another.
        """
        limit: float | None = None
        while True:
            self._changed.clear()
            wait: float | None = None
            if self.complete:
                now = time.monotonic()
                if limit is None:
                    limit = now + 3 * join_grace_seconds
                wait = min(self._joined_at + join_grace_seconds, limit) - now
                if wait <= 0:
                    return
            else:
                limit = None
            self._say()
            await wait_until_set(self._changed, wait)

    def _say(self) -> None:
        """Say that the stream is held, and that it goes on: once, whoever joins, leaves and asks meanwhile."""
        trouble = self.trouble
        if trouble != self._said:
            if trouble is not None:
                log.error("The stream is held, no message is taken: %s", trouble)
            elif self._members:
                log.info("The stream goes on, what held it has gone")
            self._said = trouble


_cohorts: WeakValueDictionary[Hashable, Cohort] = WeakValueDictionary()


def cohort_of(key: Hashable) -> Cohort:
    """Return the one cohort of ``key`` in this process; whoever uses it holds on to it."""
    cohort = _cohorts.get(key)
    if cohort is None:
        cohort = _cohorts[key] = Cohort(key)
    return cohort


class SourceClaim:
    """Keeps two streams of one process from taking messages out of one source.

    Watchers of one source with different producer arguments make different streams. Each would get some of the
    messages and settle them without the other's watchers ever seeing them. So the second waits, loudly, until the
    first has gone.
    """

    _claims: dict[str, SourceClaim] = {}

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._identity: str | None = None

    async def take(self, identity: str) -> None:
        """Wait until ``identity`` is free, and claim it."""
        if identity != self._identity:
            self.drop()
        waited = 0.0
        said: SourceClaim | None = None
        while (holder := self._claims.get(identity, self)) is not self:
            # A stream that is being closed, after its last watcher was started anew, holds it for a moment.
            another = holder._describe() != self._describe()
            if said is not holder and (another or waited >= CLOSING_SECONDS):
                said = holder
                if another:
                    log.error(
                        "Two streams want messages of %s, and each would hide some from the other's watchers. "
                        "This one waits: give all watchers of a source the same arguments. It is %s; the other is %s.",
                        identity,
                        self._describe(),
                        holder._describe(),
                    )
                else:
                    log.error("This stream waits, since the one before it on %s has not ended yet", identity)
            await asyncio.sleep(CLAIM_LOOK_SECONDS)
            waited += CLAIM_LOOK_SECONDS
        self._claims[identity] = self
        self._identity = identity

    def drop(self) -> None:
        """Give the claim up."""
        if self._identity is not None and self._claims.get(self._identity) is self:
            del self._claims[self._identity]
        self._identity = None

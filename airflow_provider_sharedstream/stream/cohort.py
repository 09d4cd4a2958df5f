"""Who must be listening before a message is taken.

Filters of this process join the cohort of their stream's key when they start to listen, and leave it when they stop.
The roster says who else belongs to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Hashable
from weakref import WeakValueDictionary

from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.roll_call import RollCall
from airflow_provider_sharedstream.stream.roster import LOOK_SECONDS, RosterReader, roster_reader, stream_id
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

SAY_AFTER_SECONDS = 10.0
"""A stream that waits longer says for whom. To wait for a moment is usual: watchers start one after another."""
SAY_EVERY_SECONDS = 60.0


class _Member:
    __slots__ = ("deaf", "introduction", "joined_at", "name", "trigger_id", "trouble")

    def __init__(self, name: str, trigger_id: int | None, trouble: str | None, introduction: Hashable) -> None:
        self.name = name
        self.trigger_id = trigger_id
        self.trouble = trouble
        self.introduction = introduction
        self.joined_at = time.monotonic()
        self.deaf = False


class Cohort:
    """The watchers of one stream in this process.

    :param key: the shared-stream key.
    :param reader: reads the roster; None: the reader of this process.
    """

    def __init__(self, key: Hashable, reader: RosterReader | None = None) -> None:
        self.key = key
        self._name = str(key)
        self.changes = 0
        """Counts joins: a source that left something unmatched offers it again to newcomers."""
        self.roll_call = RollCall(stream_id(key), reader or roster_reader())
        self._members: dict[object, _Member] = {}
        self._changed = asyncio.Event()
        self._joined_at = 0.0
        self._said: str | None = None
        self._waits_since: float | None = None
        self._say_at = 0.0
        self._trouble_at = 0.0

    def serve(self, timeout_seconds: float, stream_metrics: StreamMetrics, name: str) -> None:
        """Note how the stream runs.

        :param timeout_seconds: how long an absent watcher is waited for.
        :param stream_metrics: where it is counted when one is waited for no longer.
        :param name: the source's, for the log.
        """
        self._name = name
        self.roll_call.timeout_seconds = timeout_seconds
        self.roll_call.metrics = stream_metrics

    def join(
        self,
        watcher: str,
        trouble: str | None = None,
        introduction: Hashable = None,
        *,
        trigger_id: int | None = None,
    ) -> object:
        """Note a watcher; return the token with which it leaves.

        :param watcher: its name, for logs.
        :param trouble: why it can't judge messages; the stream is held while it stays.
        :param introduction: what the source's adapter is told of it.
        :param trigger_id: of its row, and on the roster; None: it is on none.
        """
        token = object()
        self._members[token] = _Member(watcher, trigger_id, trouble, introduction)
        if trigger_id is not None:
            self.roll_call.welcome(trigger_id)
        self.changes += 1
        self._joined_at = time.monotonic()
        self._changed.set()
        return token

    def leave(self, token: object) -> None:
        """Note that a watcher has left."""
        self._members.pop(token, None)
        self._changed.set()

    def unheard(self, trigger_id: int, offered_at: float) -> None:
        """Note that a watcher was not handed what was offered then.

        If it had joined before, Airflow has failed it (its queue was full, or it took too long), and it doesn't listen
        until it is started anew.
        """
        for member in self._members.values():
            if member.trigger_id == trigger_id and member.joined_at < offered_at:
                member.deaf = True

    def __len__(self) -> int:
        return len(self._members)

    @property
    def introductions(self) -> frozenset[Hashable]:
        """What those who listen now said of themselves."""
        return frozenset(member.introduction for member in self._members.values())

    @property
    def trouble(self) -> str | None:
        """Why the stream has to be held, or None."""
        for member in self._members.values():
            if member.trouble is not None:
                return f"{member.name}: {member.trouble}"
        return None

    @property
    def complete(self) -> bool:
        """Whether messages may be taken: somebody listens, all who do can judge, and nobody is missing."""
        return bool(self._members) and self.trouble is None and self._why_wait() is None

    def _why_wait(self) -> str | None:
        here = {m.trigger_id: m.name for m in self._members.values() if m.trigger_id is not None and not m.deaf}
        return self.roll_call.why_wait(here)

    async def ready(self, join_grace_seconds: float = 0.0) -> None:
        """Wait until messages may be taken.

        :param join_grace_seconds: where there is no roster, also wait until so long has passed since the last watcher
            joined, at most three times as long: Airflow starts the watchers of a stream one after another.
        """
        limit: float | None = None
        while True:
            self._changed.clear()
            # The roster changes without a word.
            wait = LOOK_SECONDS if self.roll_call.expected else SAY_EVERY_SECONDS
            if self.complete:
                now = time.monotonic()
                if limit is None:
                    limit = now + 3 * join_grace_seconds
                grace = min(self._joined_at + join_grace_seconds, limit) - now
                if grace <= 0 or not self.roll_call.look().blind:
                    self._say(None)
                    return
                wait = grace
            else:
                limit = None
                self._say(self._why_wait() if self._members and self.trouble is None else None)
            await wait_until_set(self._changed, wait)

    def _say(self, reason: str | None) -> None:
        """Say that the stream is held, and that it goes on: once, whoever joins, leaves and asks meanwhile.

        :param reason: why it waits, if it isn't for trouble.
        """
        trouble, now = self.trouble, time.monotonic()
        if trouble != self._said:
            if trouble is None and self._members:
                log.info("The stream goes on, what held it has gone")
            self._said = trouble
            self._trouble_at = now
        if trouble is not None and now >= self._trouble_at:
            self._trouble_at = now + SAY_EVERY_SECONDS
            log.error(
                "%s is held, no message is taken for %s: %s",
                self._name,
                "its watcher" if len(self._members) == 1 else f"any of its {len(self._members)} watchers",
                trouble,
            )
        if reason is None:
            if self._waits_since is not None and self._say_at > self._waits_since + SAY_AFTER_SECONDS:
                log.info("The stream goes on after %.0f s", now - self._waits_since)
            self._waits_since = None
        elif self._waits_since is None:
            self._waits_since = now
            self._say_at = now + SAY_AFTER_SECONDS
        elif now >= self._say_at:
            self._say_at = now + SAY_EVERY_SECONDS
            log.warning("The stream takes no message since %.0f s: %s", now - self._waits_since, reason)


_cohorts: WeakValueDictionary[Hashable, Cohort] = WeakValueDictionary()


def cohort_of(key: Hashable) -> Cohort:
    """Return the one cohort of ``key`` in this process; whoever uses it holds on to it."""
    cohort = _cohorts.get(key)
    if cohort is None:
        cohort = _cohorts[key] = Cohort(key)
    return cohort

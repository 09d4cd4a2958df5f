"""One stream of a process takes messages out of a source, and none while two want to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often it is looked whether a source is free."""
CLOSING_SECONDS = 30.0
"""How long the stream before this one may take to close before that is reported."""
SAY_AFTER_SECONDS = 10.0
SAY_EVERY_SECONDS = 60.0
"""How often it is repeated that two streams hold each other up."""


class SourceClaim:
    """Keeps two streams of one process from taking messages out of one source.

    Watchers of one source with different producer arguments make different streams. Each would settle messages that the
    other's watchers never see. So neither takes any while both are there: the messages stay with the broker until
    their arguments agree, or until the old stream of a changed Dag has gone.

    :param name: the source's, as everywhere in the log.
    :param describe: the stream's arguments, as JSON, for the message that says how the two differ.
    :param stream: the stream's name on the roster.
    :param why_hold: says what else there is to wait for before anything is taken.
    """

    _claims: dict[str, SourceClaim] = {}
    _all: WeakSet[SourceClaim] = WeakSet()

    def __init__(
        self,
        name: str,
        describe: Callable[[], str],
        stream: str = "",
        why_hold: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.stream = stream
        self.wanted: str | None = None
        """The identity of the source that it has, or waits for."""
        self._name = name
        self._describe = describe
        self._why_hold = why_hold
        self._say_at: float | None = None
        self._identity: str | None = None
        self._rivals: set[SourceClaim] = set()
        self._all.add(self)

    async def take(self, identity: str) -> None:
        """Wait until ``identity`` is free, and claim it."""
        if identity != self._identity:
            self.drop()
        self.wanted = identity
        holder: SourceClaim | None = None
        now = asyncio.get_running_loop().time
        say_at = now()
        try:
            while (current := self._claims.get(identity, self)) is not self:
                if current is not holder:
                    if holder is not None:
                        holder._rivals.discard(self)
                    holder = current
                    say_at = now()
                    if holder._describe() == self._describe():
                        # The stream before this one, which is being closed.
                        say_at += CLOSING_SECONDS
                    else:
                        holder._rivals.add(self)
                if now() >= say_at:
                    say_at = now() + SAY_EVERY_SECONDS
                    self._say(holder)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if holder is not None:
                holder._rivals.discard(self)
        self._claims[identity] = self
        self._identity = identity

    async def undisputed(self) -> None:
        """Wait until no other stream wants the source."""
        while self.disputed:
            self._say_what_holds()
            await asyncio.sleep(LOOK_SECONDS)
        self._say_at = None

    @property
    def disputed(self) -> bool:
        """Whether another stream with other arguments wants the source."""
        return bool(self._rivals) or self._why_hold() is not None

    def drop(self) -> None:
        """Give the claim up."""
        if self._identity is not None and self._claims.get(self._identity) is self:
            del self._claims[self._identity]
        self._identity = self.wanted = None

    def _say_what_holds(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._say_at is None:
            self._say_at = now + SAY_AFTER_SECONDS
        elif now >= self._say_at and (reason := self._why_hold()) is not None:
            self._say_at = now + SAY_EVERY_SECONDS
            log.warning("%s is held, no message is taken: %s", self._name, reason)

    def _say(self, holder: SourceClaim) -> None:
        if self in holder._rivals:
            log.error(
                "%s is held, no message is taken: two streams want it, and each would settle messages that the "
                "other's watchers never see. Give all watchers of a source the same arguments; they differ in %s.",
                self._name,
                differences(self._describe(), holder._describe()),
            )
        else:
            log.error("%s waits, since the stream before this one has not ended yet", self._name)


def wanted_by(stream: str) -> str | None:
    """Return the identity of the source that a stream of this process takes messages from, or waits to.

    :param stream: its name on the roster.
    """
    return next((one.wanted for one in SourceClaim._all if one.stream == stream and one.wanted is not None), None)


def differences(mine: str, theirs: str) -> str:
    """Say how two streams' arguments differ; each is JSON of what differs from the defaults."""
    try:
        here, there = json.loads(mine), json.loads(theirs)
        names = sorted({*here, *there})
    except (TypeError, ValueError):
        return f"{mine} and {theirs}"

    def shown(arguments: dict[str, Any], name: str) -> str:
        return repr(arguments[name]) if name in arguments else "the default"

    found = [f"{n}: {shown(here, n)} and {shown(there, n)}" for n in names if here.get(n, ...) != there.get(n, ...)]
    return "; ".join(found) or "the kind of stream"

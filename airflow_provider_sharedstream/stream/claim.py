"""One stream of a process takes messages out of a source, and none while two want to."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""How often it is looked whether a source is free."""
CLOSING_SECONDS = 30.0
"""How long the stream before this one may take to close before that is reported."""
SAY_EVERY_SECONDS = 60.0
"""How often it is repeated that two streams hold each other up."""


class SourceClaim:
    """Keeps two streams of one process from taking messages out of one source.

    Watchers of one source with different producer arguments make different streams. Each would settle messages that the
    other's watchers never see. So neither takes any while both are there: the messages stay with the broker until
    their arguments agree, or until the old stream of a changed Dag has gone.

    :param describe: the stream's arguments, as JSON, for the message that says how the two differ.
    """

    _claims: dict[str, SourceClaim] = {}

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._identity: str | None = None
        self._rivals: set[SourceClaim] = set()

    async def take(self, identity: str) -> None:
        """Wait until ``identity`` is free, and claim it."""
        if identity != self._identity:
            self.drop()
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
                    self._say(identity, holder)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            if holder is not None:
                holder._rivals.discard(self)
        self._claims[identity] = self
        self._identity = identity

    async def undisputed(self) -> None:
        """Wait until no other stream wants the source."""
        while self._rivals:
            await asyncio.sleep(LOOK_SECONDS)

    @property
    def disputed(self) -> bool:
        """Whether another stream with other arguments wants the source."""
        return bool(self._rivals)

    def drop(self) -> None:
        """Give the claim up."""
        if self._identity is not None and self._claims.get(self._identity) is self:
            del self._claims[self._identity]
        self._identity = None

    def _say(self, identity: str, holder: SourceClaim) -> None:
        if self in holder._rivals:
            log.error(
                "%s is held, no message is taken: two streams want it, and each would settle messages that the "
                "other's watchers never see. Give all watchers of a source the same arguments; they differ in %s.",
                identity,
                differences(self._describe(), holder._describe()),
            )
        else:
            log.error("%s waits, since the stream before this one has not ended yet", identity)


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

"""When to try again, and loops that can't end by mistake."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

SHORTEST_SECONDS = 0.1
"""Full jitter may draw nearly zero; no loop of ours turns faster than this."""


class Backoff:
    """Exponential, with full jitter.

    :param first_seconds: upper bound of the first wait.
    :param longest_seconds: upper bound of every wait.
    :param jitter: draws from 0..1; replaced in tests.
    """

    def __init__(
        self, first_seconds: float, longest_seconds: float, *, jitter: Callable[[], float] = random.random
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._jitter = jitter
        self.failures = 0

    def next_seconds(self) -> float:
        """Count one more failure and return how long to wait."""
        bound = min(self._longest_seconds, self._first_seconds * 2.0 ** min(self.failures, 32))
        self.failures += 1
        return max(SHORTEST_SECONDS, bound * self._jitter())

    def reset(self) -> None:
        """Note a success."""
        self.failures = 0


class Patience:
    """How a stream waits between attempts: seconds after what may pass, minutes after what somebody must change.

    A fatal wait keeps at least half of its bound: its purpose is to spare the broker and the log, and a draw near zero
    would not.
    """

    def __init__(self, *, longest_seconds: float = 30.0, fatal_longest_seconds: float = 300.0) -> None:
        self.transient = Backoff(1.0, longest_seconds)
        self.fatal = Backoff(30.0, fatal_longest_seconds, jitter=lambda: 0.5 + random.random() / 2)

    def next_seconds(self, *, transient: bool) -> float:
        """Return how long to wait after a failure of that kind."""
        return (self.transient if transient else self.fatal).next_seconds()

    @property
    def failures(self) -> int:
        """Failures since the last success."""
        return self.transient.failures + self.fatal.failures

    def reset(self) -> None:
        """Note a success."""
        self.transient.reset()
        self.fatal.reset()


class Spell:
    """A spell of trouble with calls of one kind: one at a time tries, ever more slowly, until one works.

    :param backoff: how long to wait between tries.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.until = 0.0
        """When the next try may be made."""
        self.trying = False
        """Whether one is under way."""

    def failed(self, now: float) -> None:
        """Note that a call failed."""
        self.trying = False
        if now >= self.until:
            self.until = now + self._backoff.next_seconds()

    def holds(self, now: float) -> bool:
        """Whether no call may be made now."""
        return self.trying or now < self.until


async def never_ending(name: str, step: Callable[[], Awaitable[None]]) -> None:
    """Run ``step`` again and again until cancelled.

    A loop of the machine that died of its own mistake would be a stream that stops silently: the mistake is logged with
    its traceback and the loop goes on, ever more slowly while it persists.
    """
    backoff = Backoff(1.0, 60.0)
    while True:
        try:
            await step()
            backoff.reset()
        except Exception:
            seconds = backoff.next_seconds()
            log.exception("%s failed; it goes on in %.1f s", name, seconds)
            await asyncio.sleep(seconds)

"""What became of the files that were offered, as far as they are still there."""

from __future__ import annotations

import time
from collections.abc import Callable

from airflow_provider_sharedstream.brokers.directory.files import File

NEWCOMERS_SECONDS = 30.0
"""What was left is offered again at most so often, however many watchers join: one that fails and is started again
every two seconds must not bring a full directory round each time."""


class Fates:
    """Changed by the event loop alone, and asked by the scanning thread too.

    A directory doesn't hide what is with somebody, and can't be told to bring a file back later; so this is kept here.
    """

    def __init__(self) -> None:
        self._open: dict[File, int] = {}
        self._left: dict[File, int] = {}
        self._later: dict[File, float] = {}
        self._joins = 0
        self._newcomers_at = float("-inf")

    def joined(self, joins: int) -> None:
        """Note how many watchers have joined so far: for the new ones, what was left is offered again."""
        if joins == self._joins:
            return
        now = time.monotonic()
        if self._left:
            if now - self._newcomers_at < NEWCOMERS_SECONDS:
                return
            self._newcomers_at = now
        self._joins = joins

    def may_be_offered(self, file: File) -> bool:
        """Whether ``file`` is with nobody, not left by those who are there, and not to come later."""
        if file in self._open or self._left.get(file, -1) >= self._joins:
            return False
        return self._later.get(file, 0.0) <= time.monotonic()

    def offer(self, file: File, joins: int) -> None:
        """Note that ``file`` goes to the ``joins`` watchers that have joined so far."""
        self._open[file] = joins
        self._left.pop(file, None)
        self._later.pop(file, None)

    def leave(self, file: File) -> None:
        """Note that ``file`` is nobody's."""
        if file in self._open:
            # Whoever joined while it was open wasn't asked.
            self._left[file] = self._open.pop(file)

    def release(self, file: File, delay_seconds: float) -> None:
        """Note that ``file`` shall come again."""
        if file in self._open:
            self.postpone(file, delay_seconds)
            del self._open[file]

    def postpone(self, file: File, delay_seconds: float) -> None:
        """Note that ``file`` can't be offered now."""
        self._later[file] = time.monotonic() + delay_seconds

    def close(self, file: File) -> None:
        """Note that ``file`` is done with."""
        self._open.pop(file, None)

    def forget(self, is_present: Callable[[File], bool]) -> None:
        """Drop what has gone. Called in the scanning thread, which nothing here minds: no step of it can be split."""
        for file in list(self._left):
            if not is_present(file):
                self._left.pop(file, None)
        for file in list(self._later):
            if not is_present(file):
                self._later.pop(file, None)

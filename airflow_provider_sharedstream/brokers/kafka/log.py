"""Keeps aiokafka from filling the log: while a broker or a topic is away it says so ten times a second."""

from __future__ import annotations

import logging
import time

SAY_EVERY_SECONDS = 60.0
MOST_REMEMBERED = 1_000


class OnceAMinute(logging.Filter):
    """Lets each kind of warning through once a minute, with how many there were.

    A kind is a text before its arguments are put in. It concerns the whole process, so it changes nothing else.
    """

    def __init__(self) -> None:
        super().__init__()
        self._said_at: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        kind, now = str(record.msg), time.monotonic()
        if now - self._said_at.get(kind, float("-inf")) < SAY_EVERY_SECONDS:
            self._unsaid[kind] = self._unsaid.get(kind, 0) + 1
            return False
        if len(self._said_at) >= MOST_REMEMBERED:
            self._said_at.clear()
        self._said_at[kind] = now
        if unsaid := self._unsaid.pop(kind, 0):
            record.msg = f"{kind} (and {unsaid} more of this kind)"
        return True


_ONCE_A_MINUTE = OnceAMinute()


def calm() -> None:
    """Put the filter on aiokafka's loggers, those imported so far."""
    for name in list(logging.Logger.manager.loggerDict):
        if name.partition(".")[0] == "aiokafka":
            logging.getLogger(name).addFilter(_ONCE_A_MINUTE)

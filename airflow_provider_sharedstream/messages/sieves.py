"""Messages that match, and still make no event: what is too old, and repeats (:mod:`.repeats`).

A sieve is asked about each message that a watcher's ``match`` lets through, before ``apply_function`` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from enum import Enum
from typing import NamedTuple

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt


class Fate(Enum):
    """What a sieve does with a message."""

    DONE = "done"
    """It is the watcher's, and needs no event."""
    AGAIN = "again"
    """It can't be judged yet and shall come again."""
    REJECT = "reject"
    """It is refused for good."""


class Held(NamedTuple):
    """A message that a sieve doesn't let through.

    :param fate: what becomes of it.
    :param counted_as: the name under which it is counted.
    :param reason: in words.
    """

    fate: Fate
    counted_as: str
    reason: str


class Candidate(NamedTuple):
    """A message that matches, and the delivery that it came with."""

    delivery: Delivery
    message: Message


class Sieve:
    """Holds some of the messages that match. This one holds none."""

    async def begin(self) -> None:
        """Get ready for a batch.

        :raises SourceUnavailable: it can't be judged now, and all of it shall come again.
        """

    def judge(self, candidate: Candidate) -> Held | None:
        """Return what becomes of a message if it isn't let through; None: it is."""
        return None

    def note(self, emitted: Sequence[Candidate], receipt: Receipt) -> Sequence[int]:
        """Take in what of the batch goes into events, and the receipt on it.

        :return: the places of those that repeat one before them, and go along with that one.
        """
        return ()

    def stamp(self, messages: Sequence[Message]) -> list[str] | None:
        """Return what is stored with an event of some of the messages that were noted last; None: nothing."""
        return None


class MaxAge(Sieve):
    """Holds what the broker took too long ago. What doesn't say when is never too old.

    :param max_age_seconds: how old a message may be.
    :param on_expired: ``reject`` refuses an older one for good, ``accept`` lets it be.
    """

    def __init__(self, max_age_seconds: float, on_expired: str = "reject") -> None:
        self._seconds = max_age_seconds
        self._fate = Fate.DONE if on_expired == "accept" else Fate.REJECT

    def judge(self, candidate: Candidate) -> Held | None:
        published_at = candidate.message.published_at
        if published_at is None:
            return None
        if published_at.tzinfo is None:
            published_at = published_at.replace(tzinfo=timezone.utc)
        age = (datetime.now(timezone.utc) - published_at).total_seconds()
        if age <= self._seconds:
            return None
        return Held(self._fate, "expired", f"{age:.0f} s old, which is more than max_age_seconds ({self._seconds:g})")

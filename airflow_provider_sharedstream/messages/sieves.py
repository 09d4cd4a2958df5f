"""Messages that match, and still make no event: repeats, and what is too old.

A sieve is asked about each message that a watcher's ``match`` lets through, before ``apply_function`` is.
"""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from datetime import datetime, timezone
from enum import Enum
from typing import Any, NamedTuple, Protocol

from airflow_provider_sharedstream.messages.match import compile_expression
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt

MOST_REMEMBERED = 100_000
"""Messages that a watcher remembers at most; the oldest is forgotten first, and is an event again."""


LONGEST_UNDER_WAY_SECONDS = 3600.0
"""An event that hasn't been stored in that time never will: Airflow waits 300 s unless it is told otherwise."""


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


class Sieve(Protocol):
    """Holds some of the messages that match."""

    def judge(self, message: Message) -> Held | None:
        """Return what becomes of ``message`` if it isn't let through; None: it is."""

    def note(self, emitted: Collection[Message], receipt: Receipt) -> None:
        """Take in which of the messages judged last go into an event, and the receipt on their batch."""


class MaxAge:
    """Holds what the broker took too long ago. What doesn't say when is never too old.

    :param max_age_seconds: how old a message may be.
    :param on_expired: ``reject`` refuses an older one for good, ``accept`` lets it be.
    """

    def __init__(self, max_age_seconds: float, on_expired: str = "reject") -> None:
        self._seconds = max_age_seconds
        self._fate = Fate.DONE if on_expired == "accept" else Fate.REJECT

    def judge(self, message: Message) -> Held | None:
        if message.published_at is None:
            return None
        published_at = message.published_at
        if published_at.tzinfo is None:
            published_at = published_at.replace(tzinfo=timezone.utc)
        age = (datetime.now(timezone.utc) - published_at).total_seconds()
        if age <= self._seconds:
            return None
        return Held(self._fate, "expired", f"{age:.0f} s old, which is more than max_age_seconds ({self._seconds:g})")

    def note(self, emitted: Collection[Message], receipt: Receipt) -> None:
        pass


class RecentMessages:
    """Holds what was in an event of this watcher a short while ago.

    A message is remembered when its event has been stored, and not before: else a first delivery whose event was lost
    would swallow the second. A repeat that comes in between is told to come again.

    It is kept in memory, as long as the watcher runs. What an operator puts back is an event again where it is older
    than the window, or carries the marks of a dead letter.

    :param window_seconds: how long a message is remembered.
    :param mark: how the names of headers begin that tell a dead letter.
    :param key: a JMESPath expression; messages in which it has the same value are the same. Where it has none, and
        without a key, it is the id that tells.
    :raises InvalidArgument: the key doesn't compile.
    """

    def __init__(
        self, window_seconds: float, mark: str, key: str | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._mark = mark
        self._window_seconds = window_seconds
        self._evaluate = None if key is None else _compiled(key)
        self._clock = clock
        self._stored: OrderedDict[str, float] = OrderedDict()
        self._waiting: list[tuple[Receipt, float, list[str]]] = []
        self._under_way: Counter[str] = Counter()
        """Keys whose events are on their way to the database."""
        self._judged: dict[str, str] = {}
        """Keys of the messages judged last, by their ids."""

    def __len__(self) -> int:
        return len(self._stored)

    def judge(self, message: Message) -> Held | None:
        now = self._clock()
        if not self._judged:
            self._look(now)
        key = self._key(message)
        self._judged[message.id] = key
        if key in self._stored:
            return Held(Fate.DONE, "repeated", "its event has been stored already")
        if key in self._under_way:
            return Held(Fate.AGAIN, "repeated_early", "the event of its first delivery isn't stored yet")
        return None

    def note(self, emitted: Collection[Message], receipt: Receipt) -> None:
        keys = [key for message in emitted if (key := self._judged.get(message.id)) is not None]
        if keys:
            self._waiting.append((receipt, self._clock(), keys))
            self._under_way.update(keys)
        self._judged.clear()

    def _look(self, now: float) -> None:
        """Remember what has been stored meanwhile, and forget what is too long ago."""
        waiting = []
        for receipt, since, keys in self._waiting:
            if not receipt.concluded and now - since < LONGEST_UNDER_WAY_SECONDS:
                waiting.append((receipt, since, keys))
                continue
            for key in keys:
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
                if receipt.concluded:
                    # Had this watcher's event not been stored, Airflow would have ended the watcher.
                    self._stored[key] = now
                    self._stored.move_to_end(key)
        self._waiting = waiting
        while self._stored:
            oldest, at = next(iter(self._stored.items()))
            if now - at < self._window_seconds and len(self._stored) <= MOST_REMEMBERED:
                return
            del self._stored[oldest]

    def _key(self, message: Message) -> str:
        # A dead letter that somebody put back is another message.
        letter = {name: str(value) for name, value in message.headers.items() if name.lower().startswith(self._mark)}
        return json.dumps([self._value(message), letter], sort_keys=True, default=str)

    def _value(self, message: Message) -> Any:
        if self._evaluate is not None:
            try:
                value = self._evaluate(message)
            except Exception:  # as with `match`: queues carry mixed shapes
                value = None
            if value is not None:
                return {"key": value}
        return message.id


def _compiled(key: str) -> Callable[[Message], Any]:
    try:
        return compile_expression(key)
    except InvalidArgument as error:
        raise InvalidArgument(str(error).replace("match:", "dedupe_key:", 1)) from None

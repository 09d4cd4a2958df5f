"""Messages whose event is stored already: they make no second one.

What tells a broker's repeat from what somebody put back on purpose:

- A message is remembered when its event *has been stored*, and not before: else a first delivery whose event was lost
  would swallow the second. A repeat that comes in between is told to come again.
- A dead letter of ours that was put back carries our marks: it is another message.
- Where a broker gives a new id to whatever is put back, the same id is a repeat.
- Where it doesn't, the source says in which *history* a message comes: another one has begun where somebody set its
  position. The same id in another history was put back.
- Where it can't say that either, a message that the broker has been told is done with, and that comes again under its
  id, was put back. Until then it is a repeat.
"""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from airflow_provider_sharedstream.messages.match import compile_expression
from airflow_provider_sharedstream.messages.sieves import Candidate, Fate, Held, Sieve
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt

MOST_REMEMBERED = 100_000
"""Messages that a watcher remembers at most; the oldest is forgotten first, and is an event again."""

LONGEST_UNDER_WAY_SECONDS = 3600.0
"""An event that hasn't been stored in that time never will: Airflow waits 300 s unless it is told otherwise."""

KEY_BYTES, ID_BYTES = 12, 6
"""Of hashes, kept to know a value and an id by."""

Recall = Callable[[], Awaitable[Mapping[str, float]]]
"""Returns the stamps of stored events, with how many seconds ago they were stored."""


class _Seen(NamedTuple):
    """What a message is recognized by.

    :param key: a hash of what makes it the same as another one: its id, or the value of ``dedupe_key``.
    :param history: in which it came; empty: its source has none.
    :param id: a hash of its id, where there are histories and the key isn't the id; else empty.
    """

    key: str
    history: str = ""
    id: str = ""

    @property
    def stamp(self) -> str:
        """It as one text of 16 to 34 characters."""
        return ".".join(self).rstrip(".")

    @classmethod
    def of_stamp(cls, stamp: str) -> _Seen:
        return cls(*stamp.split(".")[:3])


class _Stored:
    """A message whose event is stored.

    :param at: since when that is known.
    :param seen: what it is recognized by.
    """

    __slots__ = ("at", "done", "seen")

    def __init__(self, at: float, seen: _Seen) -> None:
        self.at = at
        self.seen = seen
        self.done = False
        """The broker has been told that this message is done with, and it shows nothing put back otherwise."""


class _UnderWay(NamedTuple):
    """Messages whose events aren't known to be stored yet.

    :param receipt: the watcher's on their batch.
    :param since: when they were handed over.
    :param messages: what they are recognized by, and their deliveries.
    """

    receipt: Receipt
    since: float
    messages: Mapping[_Seen, Delivery]


class _Open(NamedTuple):
    """A delivery of a stored message that the broker hasn't been told of yet."""

    delivery: Delivery
    seen: _Seen
    since: float


class Repeats(Sieve):
    """Holds what was in an event of this watcher a short while ago.

    :param window_seconds: how long a message is remembered.
    :param mark: how the names of headers begin that tell a dead letter.
    :param key: a JMESPath expression; messages in which it has the same value are the same. Where it has none, and
        without a key, it is the id that tells.
    :param history_of: returns the history in which a delivery came; None: the source has none.
    :param shows_put_back: whether what somebody puts back at the broker has another id or another history; else it is
        told by what the broker was told.
    :param source: what tells this source from others.
    :param recall: what other watches of this asset have stored, before this one or on another triggerer. Events are
        stamped then, so that they can be recalled. Default: it is kept in memory, as long as the watcher runs.
    :raises InvalidArgument: the key doesn't compile.
    """

    def __init__(
        self,
        window_seconds: float,
        mark: str,
        key: str | None = None,
        *,
        history_of: Callable[[Delivery], str] | None = None,
        shows_put_back: bool = False,
        source: str = "",
        recall: Recall | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_seconds = window_seconds
        self._mark = mark
        self._evaluate = None if key is None else _compiled(key)
        self._history_of = history_of or (lambda delivery: "")
        self._shows_put_back = shows_put_back
        self._source = source
        self._recall = recall
        self._stamps = recall is not None
        self._clock = clock
        self._stored: OrderedDict[str, _Stored] = OrderedDict()
        """By key, the oldest first."""
        self._waiting: list[_UnderWay] = []
        self._under_way: Counter[str] = Counter()
        """Keys whose events are on their way to the database."""
        self._open: list[_Open] = []
        self._judged: dict[str, _Seen] = {}
        """What the messages judged last are recognized by, by their ids."""

    def __len__(self) -> int:
        return len(self._stored)

    async def begin(self) -> None:
        if self._recall is not None:
            found = await self._recall()
            self._recall = None
            now = self._clock()
            for stamp, age in sorted(found.items(), key=lambda item: -item[1]):
                self._remember(_Seen.of_stamp(stamp), now - age)
        self._judged.clear()
        self._look(self._clock())

    def judge(self, candidate: Candidate) -> Held | None:
        seen = self._judged[candidate.message.id] = self._seen(candidate)
        known = self._stored.get(seen.key)
        if known is not None and not self._was_put_back(known, seen):
            self._watch(candidate.delivery, seen)
            return Held(Fate.DONE, "repeated", "its event has been stored already")
        if seen.key in self._under_way:
            return Held(Fate.AGAIN, "repeated_early", "the event of its first delivery isn't stored yet")
        return None

    @staticmethod
    def _was_put_back(known: _Stored, seen: _Seen) -> bool:
        return known.seen.id == seen.id and (known.done or known.seen.history != seen.history)

    def note(self, emitted: Sequence[Candidate], receipt: Receipt) -> list[int]:
        first: dict[str, Candidate] = {}
        again = []
        for place, one in enumerate(emitted):
            if first.setdefault(self._judged[one.message.id].key, one) is not one:
                again.append(place)
        if first:
            messages = {self._judged[message.id]: delivery for delivery, message in first.values()}
            self._waiting.append(_UnderWay(receipt, self._clock(), messages))
            self._under_way.update(first.keys())
        return again

    def stamp(self, messages: Sequence[Message]) -> list[str] | None:
        if not self._stamps:
            return None
        return [self._judged[message.id].stamp for message in messages]

    def _look(self, now: float) -> None:
        """Remember what has been stored meanwhile, and forget what is too long ago."""
        waiting = []
        for one in self._waiting:
            if not one.receipt.concluded and now - one.since < LONGEST_UNDER_WAY_SECONDS:
                waiting.append(one)
                continue
            for seen, delivery in one.messages.items():
                self._under_way[seen.key] -= 1
                if not self._under_way[seen.key]:
                    del self._under_way[seen.key]
                if one.receipt.concluded:
                    # Had this watcher's event not been stored, Airflow would have ended the watcher.
                    self._remember(seen, now)
                    self._watch(delivery, seen)
        self._waiting = waiting
        still = []
        for opened in self._open:
            known = self._stored.get(opened.seen.key)
            if opened.delivery.settled and known is not None and known.seen == opened.seen:
                known.done = True
            elif opened.delivery.settled is None and now - opened.since < LONGEST_UNDER_WAY_SECONDS:
                still.append(opened)
        self._open = still
        while self._stored:
            oldest, known = next(iter(self._stored.items()))
            if now - known.at < self._window_seconds and len(self._stored) <= MOST_REMEMBERED:
                return
            del self._stored[oldest]

    def _remember(self, seen: _Seen, at: float) -> None:
        self._stored[seen.key] = _Stored(at, seen)
        self._stored.move_to_end(seen.key)

    def _watch(self, delivery: Delivery, seen: _Seen) -> None:
        if not self._shows_put_back:
            self._open.append(_Open(delivery, seen, self._clock()))

    def _seen(self, candidate: Candidate) -> _Seen:
        delivery, message = candidate
        letter = {name: str(value) for name, value in message.headers.items() if name.lower().startswith(self._mark)}
        key = _hash([self._source, self._value(message), letter], KEY_BYTES)
        history = self._history_of(delivery)
        told_by_id = self._evaluate is None or (self._shows_put_back and not history)
        return _Seen(key, history, "" if told_by_id else _hash(message.id, ID_BYTES))

    def _value(self, message: Message) -> Any:
        if self._evaluate is not None:
            try:
                value = self._evaluate(message)
            except Exception:  # as with `match`: queues carry mixed shapes
                value = None
            if value is not None:
                return {"key": value}
        return message.id


def _hash(value: Any, size: int) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return urlsafe_b64encode(blake2b(text.encode(), digest_size=size).digest()).decode()


def _compiled(key: str) -> Callable[[Message], Any]:
    try:
        return compile_expression(key)
    except InvalidArgument as error:
        raise InvalidArgument(str(error).replace("match:", "dedupe_key:", 1)) from None

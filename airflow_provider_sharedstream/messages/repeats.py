"""Messages whose event is stored already: they make no second one.

What tells a broker's repeat from what somebody put back on purpose:

- A message is remembered when its event *has been stored*, and not before: else a first delivery whose event was lost
  would swallow the second. A repeat that comes in between is told to come again.
- A dead letter of ours that was put back carries our marks: it is another message.
- Where a broker gives a new id to whatever is put back, the same id is a repeat.
- Where it doesn't, a message that the broker has been told is done with, and that comes again under its id, was put
  back. Until then it is a repeat.
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

KEY_BYTES = 12

Recall = Callable[[], Awaitable[Mapping[str, float]]]
"""Returns the stamps of stored events, with how many seconds ago they were stored."""


class _Stored:
    """A message whose event is stored.

    :param at: since when that is known.
    :param id: the message's id.
    """

    __slots__ = ("at", "done", "id")

    def __init__(self, at: float, id: str) -> None:
        self.at = at
        self.id = id
        self.done = False
        """The broker has been told that this message is done with."""


class _UnderWay(NamedTuple):
    """Messages whose events aren't known to be stored yet.

    :param receipt: the watcher's on their batch.
    :param since: when they were handed over.
    :param messages: by key.
    """

    receipt: Receipt
    since: float
    messages: Mapping[str, Candidate]


class _Open(NamedTuple):
    """A delivery of a stored message that the broker hasn't been told of yet."""

    delivery: Delivery
    key: str
    since: float


class Repeats(Sieve):
    """Holds what was in an event of this watcher a short while ago.

    :param window_seconds: how long a message is remembered.
    :param mark: how the names of headers begin that tell a dead letter.
    :param key: a JMESPath expression; messages in which it has the same value are the same. Where it has none, and
        without a key, it is the id that tells.
    :param ids_come_back: whether what somebody puts back at the broker has the id that it had.
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
        ids_come_back: bool = True,
        source: str = "",
        recall: Recall | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._window_seconds = window_seconds
        self._mark = mark
        self._evaluate = None if key is None else _compiled(key)
        self._ids_come_back = ids_come_back
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
        self._judged: dict[str, str] = {}
        """Keys of the messages judged last, by their ids."""

    def __len__(self) -> int:
        return len(self._stored)

    async def begin(self) -> None:
        if self._recall is not None:
            found = await self._recall()
            self._recall = None
            now = self._clock()
            for key, age in sorted(found.items(), key=lambda item: -item[1]):
                self._stored[key] = _Stored(now - age, "")
        self._judged.clear()
        self._look(self._clock())

    def judge(self, candidate: Candidate) -> Held | None:
        message = candidate.message
        key = self._judged[message.id] = self._key(message)
        known = self._stored.get(key)
        if known is not None and not (self._ids_come_back and known.done and known.id == message.id):
            if known.id == message.id:
                self._watch(candidate.delivery, key)
            return Held(Fate.DONE, "repeated", "its event has been stored already")
        if key in self._under_way:
            return Held(Fate.AGAIN, "repeated_early", "the event of its first delivery isn't stored yet")
        return None

    def note(self, emitted: Sequence[Candidate], receipt: Receipt) -> list[int]:
        first: dict[str, Candidate] = {}
        again = []
        for place, one in enumerate(emitted):
            if first.setdefault(self._judged[one.message.id], one) is not one:
                again.append(place)
        if first:
            self._waiting.append(_UnderWay(receipt, self._clock(), first))
            self._under_way.update(first.keys())
        return again

    def stamp(self, messages: Sequence[Message]) -> list[str] | None:
        if not self._stamps:
            return None
        return [self._judged[message.id] for message in messages]

    def _look(self, now: float) -> None:
        """Remember what has been stored meanwhile, and forget what is too long ago."""
        waiting = []
        for one in self._waiting:
            if not one.receipt.concluded and now - one.since < LONGEST_UNDER_WAY_SECONDS:
                waiting.append(one)
                continue
            for key, (delivery, message) in one.messages.items():
                self._under_way[key] -= 1
                if not self._under_way[key]:
                    del self._under_way[key]
                if one.receipt.concluded:
                    # Had this watcher's event not been stored, Airflow would have ended the watcher.
                    self._stored[key] = _Stored(now, message.id)
                    self._stored.move_to_end(key)
                    self._watch(delivery, key)
        self._waiting = waiting
        still = []
        for opened in self._open:
            known = self._stored.get(opened.key)
            if opened.delivery.settled and known is not None:
                known.done = True
            elif opened.delivery.settled is None and now - opened.since < LONGEST_UNDER_WAY_SECONDS:
                still.append(opened)
        self._open = still
        while self._stored:
            oldest, known = next(iter(self._stored.items()))
            if now - known.at < self._window_seconds and len(self._stored) <= MOST_REMEMBERED:
                return
            del self._stored[oldest]

    def _watch(self, delivery: Delivery, key: str) -> None:
        if self._ids_come_back:
            self._open.append(_Open(delivery, key, self._clock()))

    def _key(self, message: Message) -> str:
        letter = {name: str(value) for name, value in message.headers.items() if name.lower().startswith(self._mark)}
        text = json.dumps([self._source, self._value(message), letter], sort_keys=True, default=str)
        return urlsafe_b64encode(blake2b(text.encode(), digest_size=KEY_BYTES).digest()).decode()

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

"""What a source shows again under its old id: a repeat in the same history, put back in another one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.messages.test_repeats import Seen, message

ORDERS = {"1": 7, "2": 7, "3": 8}
"""Which order each message is about: the producer has sent the first twice."""


class Memory:
    """Stored events, and watchers that come and go."""

    def __init__(self, key: str | None = None) -> None:
        self._key = key
        self.stamps: dict[str, int] = {}
        self._events = 0
        self.restart()

    def restart(self) -> None:
        async def recall() -> Mapping[str, float]:
            return {stamp: float(self._events - at) for stamp, at in self.stamps.items()}

        self._seen = Seen(
            86_400.0, self._key, recall=recall, shows_put_back=True, history_of=lambda delivery: str(delivery.handle)
        )

    def take(self, history: str, ids: Mapping[str, Any]) -> list[str]:
        """Return which of the messages, with their orders, make an event."""
        made, _ = self._seen.take(*(message(id, {"order": ids[id]}) for id in ids), history=history)
        self._events += 1
        self.stamps.update(dict.fromkeys(self._seen.stamps or (), self._events))
        return made


Step = tuple[str, list[str], list[str]]

TABLE: dict[str, tuple[str | None, list[Step | None]]] = {
    "a repeat": (None, [("a", ["1", "3"], ["1", "3"]), ("a", ["1", "3"], [])]),
    "a repeat by a kill": (None, [("a", ["1", "3"], ["1", "3"]), None, ("a", ["1", "3"], [])]),
    "set back": (None, [("a", ["1", "3"], ["1", "3"]), None, ("b", ["1", "3"], ["1", "3"])]),
    "set back, and then a kill": (
        None,
        [("a", ["1", "3"], ["1", "3"]), None, ("b", ["1"], ["1"]), None, ("b", ["1", "3"], ["3"])],
    ),
    "set back while it runs": (None, [("a", ["1", "3"], ["1", "3"]), ("b", ["1", "3"], ["1", "3"]), ("b", ["3"], [])]),
    "set back twice": (None, [("a", ["1"], ["1"]), ("b", ["1"], ["1"]), None, ("c", ["1"], ["1"]), ("c", ["1"], [])]),
    "a producer's repeat": ("body.order", [("a", ["1"], ["1"]), None, ("a", ["2"], [])]),
    "a producer's repeat in another partition": ("body.order", [("a", ["1"], ["1"]), None, ("z", ["2"], [])]),
    "a repeat by a kill, by key": (
        "body.order",
        [("a", ["1", "2", "3"], ["1", "3"]), None, ("a", ["1", "2", "3"], [])],
    ),
    "set back, by key": (
        "body.order",
        [("a", ["1", "2", "3"], ["1", "3"]), None, ("b", ["1", "2", "3"], ["1", "3"]), ("b", ["2", "1"], [])],
    ),
    "set back, and then a kill, by key": (
        "body.order",
        [("a", ["1", "2", "3"], ["1", "3"]), None, ("b", ["1"], ["1"]), None, ("b", ["1", "2", "3"], ["3"])],
    ),
    "set back to a producer's repeat": ("body.order", [("a", ["1", "2"], ["1"]), None, ("b", ["2", "3"], ["3"])]),
}


@pytest.mark.parametrize(("key", "steps"), TABLE.values(), ids=TABLE)
def test_the_same_id(key: str | None, steps: list[Step | None]) -> None:
    """Of each step: the history, what comes in it, and what of that makes an event; None: a kill."""
    memory = Memory(key)
    for step in steps:
        if step is None:
            memory.restart()
        else:
            history, ids, expected = step
            assert memory.take(history, {id: ORDERS[id] for id in ids}) == expected


@pytest.mark.parametrize(
    ("key", "history", "length"),
    [(None, "", 16), ("body.order", "", 16), (None, "abcdefgh", 25), ("body.order", "abcdefgh", 34)],
)
def test_a_stamp_is_short_and_understood(key: str | None, history: str, length: int) -> None:
    """Of a source that has no histories, as short as it has ever been."""
    memory = Memory(key)
    assert memory.take(history, {"1" * 300: "7" * 300}) == ["1" * 300]
    assert [len(stamp) for stamp in memory.stamps] == [length]
    memory.restart()
    assert memory.take(history, {"1" * 300: "7" * 300}) == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(1, 4)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("kill"), st.just(0)),
        st.tuples(st.just("set back"), st.integers(0, 6)),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, keyed=st.booleans())
def test_whatever_happens_to_a_partition(steps: list[tuple[str, int]], keyed: bool) -> None:
    """In each history a message makes one event, or its order does, where that was so before it was set back."""
    memory = Memory("body.order" if keyed else None)
    orders: list[int] = []
    position = committed = history = 0
    events: Counter[tuple[int, int]] = Counter()
    last: dict[int, int] = {}
    """By order: the message that made its newest event."""
    expected: set[int] = set()
    """Orders, or messages, that make an event in this history."""

    def read(most: int) -> None:
        nonlocal position
        batch = range(position, min(position + most, len(orders)))
        position = batch.stop
        for id in map(int, memory.take(str(history), {str(n): orders[n] for n in batch}) if batch else ()):
            events[history, id] += 1
            last[orders[id]] = id

    def is_complete() -> None:
        made = [id for (of, id) in events if of == history]
        assert all(count == 1 for count in events.values())
        if keyed:
            assert sorted(orders[id] for id in made) == sorted(expected)
        else:
            assert sorted(made) == sorted(expected)

    for name, number in [*steps, ("read", 1000)]:
        if name == "publish":
            if not keyed:
                expected.add(len(orders))
            elif number not in orders:
                expected.add(number)
            orders.append(number)
        elif name == "read":
            read(number)
        elif name == "commit":
            committed = position
        elif name == "kill":
            memory.restart()
            position = committed
        else:
            read(1000)
            is_complete()
            memory.restart()
            history += 1
            position = committed = min(number, len(orders))
            expected = (
                {order for order, id in last.items() if id >= position} if keyed else set(range(position, len(orders)))
            )
    is_complete()

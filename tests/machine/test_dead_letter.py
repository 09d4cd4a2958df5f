"""The note that goes with a rejected message."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_sharedstream.stream.dead_letter import LONGEST_REASON, PREFIX, note
from tests.machine.fakes import delivery

anything = st.text(st.characters(exclude_categories=()), max_size=200)


def test_it_says_why_from_where_and_by_whom() -> None:
    one = delivery("m1", delivery_count=3)
    one.reason, one.rejected_by = "no such customer", ("orders (trigger 4)", "refunds (trigger 7)")
    headers = note(one, "memory:orders").as_headers()
    assert headers.pop(f"{PREFIX}rejected-at")
    assert headers == {
        f"{PREFIX}reason": "no such customer",
        f"{PREFIX}origin": "memory:orders",
        f"{PREFIX}delivery-id": "m1",
        f"{PREFIX}watcher": "orders (trigger 4), refunds (trigger 7)",
        f"{PREFIX}delivery-count": "3",
    }


def test_nothing_said_is_said_in_words() -> None:
    for reason in (None, "", "\n\t"):
        one = delivery()
        one.reason = reason
        assert (note(one, "o").reason, note(one, "o").watcher) == ("rejected", "none")


def test_control_characters_and_surrogates() -> None:
    one = delivery("dir/na\udcffme\n")
    one.reason, one.rejected_by = "line one\nline\x00 two \ud800 ünïcödé \U0001f600", ("as\x07set\ud800",)
    made = note(one, "directory:/data/\udcfe")
    assert made.reason == "line one line  two ? ünïcödé \U0001f600"
    assert made.watcher == "as set?"
    assert made.delivery_id == "dir/na?me"
    assert made.origin == "directory:/data/?"


@given(anything, st.lists(anything, max_size=30), anything, anything)
def test_any_text_can_be_a_header(reason: str, watchers: list[str], id: str, origin: str) -> None:
    one = delivery(id)
    one.reason, one.rejected_by = reason * 20, tuple(watchers)
    made = note(one, origin)
    assert 1 <= len(made.reason) <= LONGEST_REASON
    assert 1 <= len(made.watcher) <= LONGEST_REASON
    for value in made.as_headers().values():
        value.encode("utf-8")
        assert value.isprintable()
    json.loads(json.dumps(made.as_dict(), ensure_ascii=False).encode("utf-8"))

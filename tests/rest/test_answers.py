"""What an answer holds, and what is asked for next."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_sharedstream.brokers.rest.answers import Reader, changed, later
from airflow_provider_sharedstream.brokers.rest.asks import Ask, Asked, paging
from airflow_provider_sharedstream.brokers.rest.errors import AnswerUnusable
from airflow_provider_sharedstream.stream.errors import InvalidArgument


def items(body: Any, items_path: str = "@", id_path: str | None = "id") -> list[Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return list(Reader(items_path, id_path).read(data).items)


def test_an_item_is_known_by_its_id_or_by_its_content() -> None:
    one, two, three, four = items([{"id": 7, "n": 1}, {"id": "7", "n": 2}, {"n": 3, "m": 4}, {"m": 4, "n": 3}])
    assert (one.id, two.id) == ("7", "7")
    assert one.key == two.key, "an id is shown as text, and so it is known as text"
    assert (three.key, three.id) == (four.key, four.id), "the order of the names is no difference"
    assert json.loads(three.body) == {"n": 3, "m": 4}


NOTHING: list[Any] = [None, "", [], {}, [None, None], [None, ""], {"id": None}]


@pytest.mark.parametrize(
    "odd", [*NOTHING, 0, False, "x" * 5000, "line\nbreak", "\ud800", 1.5, True, [1, "b"], [1, None], 10**30]
)
def test_every_id_can_be_stored_and_shown(odd: Any) -> None:
    (item,) = items([{"id": odd, "n": 1}])
    assert 0 < len(item.id) <= 256
    assert item.id.isprintable()
    item.id.encode()
    assert len(item.key) == 12
    (other,) = items([{"id": odd, "n": 2}])
    assert (item.key == other.key) is (odd not in NOTHING), "known by the id where there is one"


LEAVES = st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_any_item_is_read(value: Any) -> None:
    body = json.dumps([value]).encode()
    (item,) = items(body, id_path=None)
    assert json.loads(item.body) == value
    assert items(body, id_path=None) == [item]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    for reader in (Reader(), Reader("items", "id", "cursor"), Reader("@")):
        with suppress(AnswerUnusable):
            assert all(len(item.key) == 12 for item in reader.read(body).items)
    (item,) = Reader(expect_json=False).read(body).items
    assert item.body == body


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not JSON: 0 bytes"),
        (b"null", "items_path gives null, expected a list"),
        (b'{"items": 5}', "items_path gives a number, expected a list"),
        (b'{"items": true}', "items_path gives a boolean, expected a list"),
        (b'{"items": [], "at": {}}', "cursor_path gives an object"),
        (b'{"items": [], "at": NaN}', "cursor_path gives a number"),
        (b'{"items": [], "at": true}', "cursor_path gives a boolean"),
    ],
)
def test_what_is_not_as_expected_is_refused(body: bytes, text: str) -> None:
    with pytest.raises(AnswerUnusable, match=text):
        Reader("items", "id", "at").read(body)


def test_a_path_that_cannot_be_evaluated_is_no_event() -> None:
    with pytest.raises(AnswerUnusable, match="items_path can't be evaluated on the answer"):
        Reader("sort_by(items, &n)").read(b'{"items": [{"n": 1}, {"n": "a"}]}')


def test_json_with_a_byte_order_mark_or_in_utf_16() -> None:
    for encoding in ("utf-8-sig", "utf-16", "utf-32"):
        (item,) = items(json.dumps([{"id": "ü"}]).encode(encoding))
        assert item.id == "ü"


def test_a_whole_body_is_known_by_what_it_says() -> None:
    (one,) = Reader().read(b'{"a": 1, "b": [2]}').items
    (same,) = Reader().read(b'{ "b":[2], "a":1 }').items
    (text,) = Reader(expect_json=False).read(b"{a").items
    assert one.key == same.key != text.key
    assert one.body == b'{"a": 1, "b": [2]}'
    assert changed(one, 1).id != changed(one, 2).id == changed(same, 2).id


@pytest.mark.parametrize(
    ("one", "other", "latest"),
    [
        (5, 7, 7),
        (7, 5, 7),
        (5, 7.5, 7.5),
        (None, 5, 5),
        (5, None, 5),
        ("2026-01-02T00:00:00Z", "2026-01-01T23:00:00Z", "2026-01-02T00:00:00Z"),
        ("2026-01-02T00:30:00+01:00", "2026-01-01T23:45:00Z", "2026-01-01T23:45:00Z"),
        ("2026-01-02", "2026-01-01", "2026-01-02"),
        ("zz-token", "aa-token", "aa-token"),
        ("2026-01-02T00:00:00Z", "2026-01-01T00:00:00", "2026-01-01T00:00:00"),
        (9, "abc", "abc"),
    ],
)
def test_the_later_of_two_cursors(one: Any, other: Any, latest: Any) -> None:
    assert later(one, other) == latest


def asked(ask: Ask, **known: Any) -> Asked:
    empty: dict[str, Any] = {
        "url": ask.url,
        "link": None,
        "document": {},
        "items": 10,
        "position": 10,
        "number": 1,
        "cursor": None,
    }
    return Asked(ask=ask, **{**empty, **known})


FIRST = Ask("https://host/list?x=1", {"q": "a"})


def test_next_pages() -> None:
    by_link = paging(None, None).next
    assert by_link(asked(FIRST)) is None
    assert by_link(asked(FIRST, link="?page=2")) == Ask("https://host/list?page=2", {})
    assert by_link(asked(FIRST, link="//other/x")) == Ask("https://other/x", {})
    by_url = paging({"url": "links.next"}, None).next
    assert by_url(asked(FIRST, document={"links": {"next": "/p2"}})) == Ask("https://host/p2", {})
    assert by_url(asked(FIRST, document={"links": {}})) is None
    by_token = paging({"token": "t", "param": "page_token"}, None).next
    assert by_token(asked(FIRST, document={"t": "abc"})) == Ask(FIRST.url, {"q": "a", "page_token": "abc"})
    assert by_token(asked(FIRST, document={"t": ""})) is None
    counted = paging({"page": "p"}, None)
    assert counted.first(FIRST).params == {"q": "a", "p": 1}
    assert counted.next(asked(FIRST, number=3)).params["p"] == 4  # type: ignore[union-attr]
    assert counted.next(asked(FIRST, items=0)) is None
    offset = paging({"offset": "o", "size": 10}, None)
    assert offset.next(asked(FIRST, position=30)).params["o"] == 30  # type: ignore[union-attr]
    assert offset.next(asked(FIRST, items=9)) is None
    by_cursor = paging("cursor", "since")
    assert by_cursor.next(asked(FIRST, cursor=0)).params["since"] == 0  # type: ignore[union-attr]
    assert by_cursor.next(asked(FIRST, cursor=0, items=0)) is None
    assert paging("none", None).next(asked(FIRST, link="?page=2")) is None


def test_a_parameter_may_be_a_field_of_the_data() -> None:
    ask = Ask("https://host", {}, {"variables": {"a": 1}, "odd": 5})
    assert ask.having("data.variables.after", "c").data == {"variables": {"a": 1, "after": "c"}, "odd": 5}
    assert ask.having("data.odd.deep", 1).data["odd"] == {"deep": 1}
    assert ask.data == {"variables": {"a": 1}, "odd": 5}, "the request before was changed"


@pytest.mark.parametrize("document", [{"links": {"next": 5}}, {"links": {"next": ["x"]}}])
def test_a_next_page_that_is_no_url(document: Any) -> None:
    with pytest.raises(AnswerUnusable, match="expected a URL or null"):
        paging({"url": "links.next"}, None).next(asked(FIRST, document=document))


@pytest.mark.parametrize(
    "wrong",
    [
        "links",
        "cursor",
        5,
        [],
        {},
        {"url": "("},
        {"url": 5},
        {"token": "t"},
        {"page": ""},
        {"page": "p", "size": 0},
        {"page": "p", "first": "1"},
        {"page": "p", "offset": "o"},
    ],
)
def test_what_next_page_cannot_be(wrong: Any) -> None:
    with pytest.raises(InvalidArgument, match="next_page"):
        paging(wrong, None)

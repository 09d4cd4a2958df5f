from __future__ import annotations

import threading
from datetime import datetime, timezone
from typing import Any

import jmespath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_sharedstream.messages.match import FIELDS, Matcher
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message

MESSAGE = Message(
    id="m-1",
    body={
        "region": "eu",
        "amount": 120,
        "items": [{"sku": "a"}, {"sku": "b"}],
        "a-b": {"c.d": 1},
        "zero": 0,
        "none": None,
    },
    headers={"type": "order", "content-type": "text/csv"},
    key="k",
    published_at=datetime(2026, 1, 31, 12, tzinfo=timezone.utc),
    delivery_count=2,
    attributes={"topic": "orders"},
)


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        (None, True),
        ({}, True),
        ("body.region == 'eu'", True),
        ("body.region == 'us'", False),
        ("body.region == 'eu' && body.amount > `100`", True),
        ("body.amount > `100` && body.amount < `120`", False),
        ("!(body.missing)", True),
        ("body.items[?sku == 'b']", True),
        ("body.items[?sku == 'z']", False),
        ("contains(headers.type, 'ord')", True),
        ("body.zero", True),  # 0 is true in JMESPath
        ("body.none", False),
        ("''", False),
        ("`{}`", False),
        ("`[]`", False),
        ("`false`", False),
        ("`[0]`", True),
        ("key == 'k' && id == 'm-1' && delivery_count == `2` && attributes.topic == 'orders'", True),
        ("published_at == '2026-01-31T12:00:00.000+00:00'", True),
        ("\"published\\u005fat\" == '2026-01-31T12:00:00.000+00:00'", True),
        ("@.published_at", True),
        ("*.region | [0] == 'eu'", True),
        ('[body.region, headers.type] == `["eu", "order"]`', True),
        ("{r: body.region}.r == 'eu'", True),
        ("body | region == 'eu'", True),
        ("sort_by(body.items, &sku)[0].sku == 'a'", True),
        ({"body.region": "eu", "headers.type": ["order", "refund"]}, True),
        ({"body.region": "eu", "headers.type": ["refund"]}, False),
        ({"headers.content-type": "text/csv"}, True),
        ({'body.a-b."c.d"': 1, "body.items[1].sku": "b", "body.items[-1].sku": "b"}, True),
        ({"body.missing": None, "body.none": None, "body.zero": 0}, True),
        ({"body.zero": False}, False),
        ({"body.zero": 0.0}, True),
        ({"body.region": "e`u"}, False),
        ({"key": "k", "published_at": "2026-01-31T12:00:00.000+00:00"}, True),
    ],
    ids=str,
)
def test_matches(expression: Any, matches: bool) -> None:
    assert Matcher(expression).matches(MESSAGE) is matches


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("body.region ==", "at position 14"),
        ("body.[", "at position 6"),
        ("body.region = 'eu'", "at position 12"),
        ("body.a 'x'", "at position 7"),
        ("'x", "at position 0: Unclosed ' delimiter\n  'x\n  ^"),
        ('body."x', "at position 5"),
        ("!body.missing", "expected !(body.name)"),
        ("body.region && !headers.type.x", "expected !(body.name)"),
        ("", "match='': expected a JMESPath expression, or None for all messages"),
        ("  ", "expected a JMESPath expression"),
        ("region == 'eu'", "'region' in \"region == 'eu'\" isn't part of a message"),
        ("body.a && headres.b", "did you mean body.headres?"),
        ("length(amount)", "'amount' in"),
        ("[0].x || regions[?a == 'b']", "'regions' in"),
        ("lenght(body)", "no function lenght(), did you mean length()? (position 0"),
        ("body.a && len(body.b) > `1`", "no function len(), did you mean length()? (position 10"),
        ("zzz(body)", "no function zzz() (position 0"),
        ("body.amount > 100", "position 14: a number is written `100`, in backticks\n"),
        ("body.amount > -5", "a number is written `-5`, in backticks"),
        ('body.region == "eu"', "(text is written 'eu'; double quotes mean a name)"),
        ('body.region == "e u"', "(text is written 'e u'; double quotes mean a name)"),
        ("body['region'] == 'eu' and body.a", "position 5: a part is named by a dot: body.region for body['region']\n"),
        ("body.region == 'eu' and body.a", "position 20: and is written &&\n"),
        ("body.region == 'eu' or body.a", "or is written ||"),
        ("body.paid == true", "(true is written `true`, in backticks)"),
        ("body.paid == None", "(None is written `null`, in backticks)"),
        ("body.a && length(body.a, body.b)", "length() takes 1 arguments, got 2 (position 10"),
        ("not_null()", "takes 1 or more arguments, got 0"),
        ("(" * 5000 + "body" + ")" * 5000, "nested too deeply"),
        (5, "got int"),
        (["body"], "got list"),
        ({"region": "eu"}, "did you mean 'body.region'?"),
        ({"body.region": []}, "expected at least one value for 'body.region'"),
        ({"body.region": {"a": 1}}, "expected text, a number, a boolean or None for 'body.region', got dict"),
        ({"body.region": [["eu"]]}, "got list"),
        ({"body.region": float("nan")}, "got the number nan"),
        ({5: 1}, "expected the path of a value"),
        ({"": 1}, "expected a name at position 0"),
        ({"body..a": 1}, "expected a name at position 5"),
        ({"body.": 1}, "expected a name at position 5"),
        ({"body[x]": 1}, "expected a dot at position 4"),
        ({'body."x': 1}, "expected a name at position 5"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_said_at_once_with_its_place(expression: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Matcher(expression)
    assert str(caught.value).startswith(("match: ", "match="))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "expression",
    [
        "length(body.missing) > `1`",
        "body.region > `2`",
        "contains(body.amount, 'x')",
        "sum(body.items) > `1`",
        "body.items[?sku > `1`] && to_number(body) > 'a'",
        "sort_by(body.items, &missing)",
    ],
)
def test_what_cannot_be_evaluated_is_no_match_and_is_told(expression: str) -> None:
    told: list[tuple[str, str]] = []
    matcher = Matcher(expression, lambda message, error: told.append((message.id, type(error).__name__)))
    assert matcher.matches(MESSAGE) is False
    assert matcher.matches(MESSAGE) is False
    assert matcher.failures == len(told) == 2
    assert told[0][0] == "m-1"
    # The same expression is fine where the message has the shape for it.
    assert matcher.matches(Message("m-2", {})) in (True, False)


def test_every_part_of_a_message_can_be_asked_for() -> None:
    assert set(FIELDS) == {*MESSAGE.as_dict()}
    for name in FIELDS:
        assert Matcher(name).matches(MESSAGE)


leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5, "", "eu", "us"])
shapes = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=6,
)
operands = st.sampled_from(
    ["body", "body.a", "body.a.b", "headers.a", "body.a[0]", "`1`", "`0`", "`false`", "'eu'", "`null`", "`[1]`"]
)
comparisons = st.builds("{} {} {}".format, operands, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), operands)
others = st.sampled_from(["body | a", "body[*].a", "length(body)", "body.a | [0]", "@.body.a", "[body.a]"])
grammar = st.recursive(
    comparisons
    | operands
    | st.sampled_from(["body | a", "body[*].a", "length(body)", "body.a | [0]", "@.body.a", "[body.a]"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["&&", "||"]), inner) | st.builds("!({})".format, inner)
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(grammar, shapes, shapes)
def test_agrees_with_the_library(expression: str, body: Any, header: Any) -> None:
    message = Message("m", body, {"a": header})
    try:
        result = jmespath.search(expression, message.as_dict())
    except Exception:
        expected = False
    else:
        expected = not (result is None or result is False or result in ("", [], {}))
    assert Matcher(expression).matches(message) is expected


def test_a_list_of_thousands_of_values() -> None:
    matcher = Matcher({"body.n": list(range(5000))})
    assert matcher.matches(Message("m", {"n": 4999}))
    assert not matcher.matches(Message("m", {"n": 5000}))
    assert matcher.failures == 0


def test_one_matcher_serves_several_threads() -> None:
    matcher = Matcher("body.n > `10` && headers.type == 'order'")
    wrong: list[int] = []

    def look(start: int) -> None:
        for n in range(start, start + 300):
            if matcher.matches(Message("m", {"n": n}, {"type": "order"})) is not (n > 10):
                wrong.append(n)

    threads = [threading.Thread(target=look, args=(start,)) for start in (0, 5, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []

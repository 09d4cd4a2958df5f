"""Repeats make no second event, and lose none; what is too old follows its policy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_sharedstream.messages import sieves as sieves_module
from airflow_provider_sharedstream.messages.sieves import Fate, MaxAge, RecentMessages
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

MARK = "x-sharedstream-"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Seen:
    """One watcher's sieve, and batches that go through it one by one."""

    def __init__(self, window_seconds: float = 60.0, key: str | None = None) -> None:
        self.clock = Clock()
        self.recent = RecentMessages(window_seconds, MARK, key, clock=self.clock)

    def take(self, *messages: Message, conclude: bool = True) -> tuple[list[str], Receipt]:
        """Return the ids that go into an event, and the receipt."""
        receipt = Receipt(Batch([Delivery(id="d", body=b"")]), "w")
        held = [self.recent.judge(message) for message in messages]
        emitted = [message for message, one in zip(messages, held, strict=True) if one is None]
        self.recent.note(emitted, receipt)
        receipt.concluded = conclude
        self.fates = [None if one is None else one.fate for one in held]
        return [message.id for message in emitted], receipt


def message(id: str, body: Any = None, headers: Mapping[str, Any] | None = None) -> Message:
    return Message(id=id, body=body, headers=headers or {})


def test_a_repeat_makes_no_second_event() -> None:
    seen = Seen()
    assert seen.take(message("1"), message("2"))[0] == ["1", "2"]
    assert seen.take(message("2"), message("3"))[0] == ["3"]
    assert seen.fates == [Fate.DONE, None]


def test_it_is_an_event_again_after_the_window() -> None:
    seen = Seen(60)
    seen.take(message("1"))
    seen.take(message("0"))  # from now on it is remembered
    seen.clock.now += 59
    assert seen.take(message("1"))[0] == []
    seen.clock.now += 1
    assert seen.take(message("1"))[0] == ["1"]


def test_a_repeat_before_the_event_is_stored_comes_again() -> None:
    """If it counted as done, and the triggerer died before the event is stored, the message would be lost."""
    seen = Seen()
    _, receipt = seen.take(message("1"), conclude=False)
    assert seen.take(message("1"))[0] == []
    assert seen.fates == [Fate.AGAIN]
    receipt.concluded = True
    seen.take(message("1"))
    assert seen.fates == [Fate.DONE]


def test_what_made_no_event_is_not_remembered() -> None:
    seen = Seen()
    receipt = Receipt(Batch([Delivery(id="d", body=b"")]), "w")
    assert seen.recent.judge(message("1")) is None
    seen.recent.note([], receipt)  # an apply_function has refused it, or failed
    receipt.concluded = True
    assert seen.take(message("1"))[0] == ["1"]


def test_an_event_that_is_never_stored_does_not_hold_its_message_for_ever() -> None:
    seen = Seen()
    seen.take(message("1"), conclude=False)
    seen.clock.now += sieves_module.LONGEST_UNDER_WAY_SECONDS
    assert seen.take(message("1"))[0] == ["1"]


def test_a_key_of_ones_own() -> None:
    seen = Seen(key="body.order")
    assert seen.take(message("1", {"order": 7}), message("2", {"order": 8}))[0] == ["1", "2"]
    assert seen.take(message("3", {"order": 7}), message("4", {"order": "7"}), message("5", {}))[0] == ["4", "5"]
    assert seen.take(message("6", {}), message("5", {}))[0] == ["6"], "without a value it is the id"


def test_a_key_that_can_not_be_evaluated() -> None:
    seen = Seen(key="length(body.order)")
    assert seen.take(message("1", {}), message("2", 7))[0] == ["1", "2"]
    assert seen.take(message("2", 7))[0] == []


def test_a_dead_letter_that_was_put_back() -> None:
    """It is an event again; its own redelivery is a repeat."""
    seen = Seen()
    seen.take(message("1"))
    back = message("1", headers={"x-sharedstream-reason": "no order", "x-sharedstream-time": "12:00"})
    assert seen.take(back)[0] == ["1"]
    assert seen.take(back)[0] == []


def test_it_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sieves_module, "MOST_REMEMBERED", 10)
    seen = Seen()
    for number in range(50):
        seen.take(message(str(number)))
    assert len(seen.recent) <= 10
    assert seen.take(message("48"))[0] == []
    assert seen.take(message("5"))[0] == ["5"]


def aged(seconds: float | None) -> Message:
    moment = None if seconds is None else datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return Message(id="1", body=None, published_at=moment)


def test_what_is_too_old() -> None:
    for policy, fate in (("reject", Fate.REJECT), ("accept", Fate.DONE)):
        sieve = MaxAge(60, policy)
        held = sieve.judge(aged(100))
        assert held is not None
        assert held.fate is fate
        assert "max_age_seconds (60)" in held.reason
        for young in (aged(10), aged(-10), aged(None)):
            assert sieve.judge(young) is None


def test_a_moment_without_a_zone_is_in_utc() -> None:
    naive = datetime.now(timezone.utc).replace(tzinfo=None) - timedelta(seconds=10)
    assert MaxAge(60).judge(Message(id="1", body=None, published_at=naive)) is None
    assert MaxAge(5).judge(Message(id="1", body=None, published_at=naive)) is not None


def deliver(trigger: SqsSharedStreamTrigger, *deliveries: Delivery) -> tuple[list[list[Message]], Receipt]:
    receipt = Receipt(Batch(deliveries), "w")
    return asyncio.run(trigger.pipeline().groups_for(deliveries, receipt)), receipt


def test_the_trigger_rejects_what_is_too_old() -> None:
    trigger = SqsSharedStreamTrigger("q", max_age_seconds=60)
    old = Delivery(id="1", body=b"{}", published_at=datetime.now(timezone.utc) - timedelta(hours=1))
    new = Delivery(id="2", body=b"{}", published_at=datetime.now(timezone.utc))
    groups, receipt = deliver(trigger, old, new)
    assert [one.id for group in groups for one in group] == ["2"]
    assert list(receipt.rejected) == [old]
    assert receipt.matched == {new}


def test_the_trigger_accepts_what_is_too_old() -> None:
    trigger = SqsSharedStreamTrigger("q", max_age_seconds=60, on_expired="accept")
    old = Delivery(id="1", body=b"{}", published_at=datetime.now(timezone.utc) - timedelta(hours=1))
    groups, receipt = deliver(trigger, old)
    assert groups == []
    assert receipt.matched_all
    assert not receipt.rejected


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"dedupe_window_seconds": 60, "dedupe_key": "body."}, "dedupe_key: not a JMESPath expression"),
        ({"dedupe_window_seconds": 60, "dedupe_key": "order"}, "did you mean body.order"),
        ({"dedupe_window_seconds": 0}, "dedupe_window_seconds=0: expected a number"),
        ({"max_age_seconds": "1h"}, "max_age_seconds='1h': expected a number"),
        ({"max_age_seconds": 60, "on_expired": "drop"}, "on_expired='drop': expected one of"),
    ],
)
def test_mistakes_are_named_in_the_dag_file(arguments: Any, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SqsSharedStreamTrigger("q", **arguments).serialize()
    assert said in str(caught.value)


def test_watchers_that_differ_in_it_share_a_stream() -> None:
    plain, keen = SqsSharedStreamTrigger("q"), SqsSharedStreamTrigger("q", dedupe_window_seconds=60, max_age_seconds=9)
    assert plain.shared_stream_key() == keen.shared_stream_key()

"""Repeats make no second event, and lose none; what somebody put back on purpose is an event again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from airflow_provider_sharedstream.messages import repeats as repeats_module
from airflow_provider_sharedstream.messages.repeats import Repeats
from airflow_provider_sharedstream.messages.sieves import Candidate, Fate
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
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

    def __init__(self, window_seconds: float = 60.0, key: str | None = None, **more: Any) -> None:
        self.clock = Clock()
        self.repeats = Repeats(window_seconds, MARK, key, clock=self.clock, **more)
        self.stamps: list[str] | None = None

    def take(
        self, *messages: Message, conclude: bool = True, settled: bool | None = None, history: str = ""
    ) -> tuple[list[str], Receipt]:
        """Return the ids that go into an event, and the receipt.

        :param settled: what the broker has been told of the messages by the next time.
        :param history: in which they come, for a sieve that looks at the handle.
        """
        asyncio.run(self.repeats.begin())
        candidates = [Candidate(Delivery(id="d", body=b"", handle=history), message) for message in messages]
        receipt = Receipt(Batch([one.delivery for one in candidates]), "w")
        held = [self.repeats.judge(one) for one in candidates]
        emitted = [candidate for candidate, one in zip(candidates, held, strict=True) if one is None]
        again = self.repeats.note(emitted, receipt)
        emitted = [one for place, one in enumerate(emitted) if place not in again]
        receipt.concluded = conclude
        for delivery, _ in candidates:
            delivery.settled = settled
        self.fates = [None if one is None else one.fate for one in held]
        self.stamps = self.repeats.stamp([one.message for one in emitted])
        return [one.message.id for one in emitted], receipt


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
    candidate = Candidate(Delivery(id="d", body=b""), message("1"))
    receipt = Receipt(Batch([candidate.delivery]), "w")
    asyncio.run(seen.repeats.begin())
    assert seen.repeats.judge(candidate) is None
    seen.repeats.note([], receipt)  # an apply_function has refused it, or failed
    receipt.concluded = True
    assert seen.take(message("1"))[0] == ["1"]


def test_an_event_that_is_never_stored_does_not_hold_its_message_for_ever() -> None:
    seen = Seen()
    seen.take(message("1"), conclude=False)
    seen.clock.now += repeats_module.LONGEST_UNDER_WAY_SECONDS
    assert seen.take(message("1"))[0] == ["1"]


def test_a_key_of_ones_own() -> None:
    seen = Seen(key="body.order")
    assert seen.take(message("1", {"order": 7}), message("2", {"order": 8}))[0] == ["1", "2"]
    assert seen.take(message("3", {"order": 7}), message("4", {"order": "7"}), message("5", {}))[0] == ["4", "5"]
    assert seen.take(message("6", {}), message("5", {}))[0] == ["6"], "without a value it is the id"


def test_a_repeat_in_one_batch() -> None:
    """It goes along with the first, whose event is stored for both or for neither."""
    seen = Seen(key="body.order")
    assert seen.take(message("1", {"order": 7}), message("2", {"order": 7}), message("3", {"order": 8}))[0] == [
        "1",
        "3",
    ]


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


def test_what_the_broker_was_told_of_and_comes_again_was_put_back() -> None:
    """As after a seek in Pub/Sub, which shows everything again under its own ids."""
    seen = Seen()
    seen.take(message("1"), settled=True)
    assert seen.take(message("1"), settled=True)[0] == ["1"]
    assert seen.take(message("1"), settled=False)[0] == ["1"], "and once more"
    assert seen.take(message("1"), settled=None)[0] == [], "the broker was told that it is to come again"
    assert seen.take(message("1"), settled=True)[0] == [], "nothing was told"
    assert seen.take(message("1"))[0] == ["1"], "the repeat is settled now"


def test_where_ids_do_not_come_back_the_same_id_is_a_repeat() -> None:
    seen = Seen(shows_put_back=True)
    seen.take(message("1"), settled=True)
    assert seen.take(message("1"))[0] == []


def test_a_producers_repeat_is_one_whatever_the_broker_was_told() -> None:
    seen = Seen(key="body.order")
    first, second = message("1", {"order": 7}), message("2", {"order": 7})
    seen.take(first, settled=True)
    assert seen.take(second, settled=True)[0] == []
    # Somebody sets back the group: the order is handled again, once.
    assert seen.take(second, settled=True)[0] == []
    assert seen.take(first, settled=True)[0] == ["1"]
    assert seen.take(second)[0] == []


def test_it_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats_module, "MOST_REMEMBERED", 10)
    seen = Seen()
    for number in range(50):
        seen.take(message(str(number)))
    assert len(seen.repeats) <= 10
    assert seen.take(message("48"))[0] == []
    assert seen.take(message("5"))[0] == ["5"]


def test_nothing_is_stamped_that_is_not_recalled() -> None:
    seen = Seen()
    seen.take(message("1"))
    assert seen.stamps is None


def test_what_was_stored_before_is_recalled() -> None:
    stored: dict[str, float] = {}

    async def recall() -> Mapping[str, float]:
        return dict(stored)

    first = Seen(60, shows_put_back=True, source="s", recall=recall)
    first.take(message("1"), message("2"))
    assert first.stamps is not None
    assert len(set(first.stamps)) == 2
    stored.update(zip(first.stamps, (50.0, 10.0), strict=True))
    second = Seen(60, shows_put_back=True, source="s", recall=recall)
    assert second.take(message("1"), message("2"), message("3"))[0] == ["3"]
    second.clock.now += 20
    assert second.take(message("2"), message("1"))[0] == ["1"], "it is older than the window"
    other = Seen(60, shows_put_back=True, source="another", recall=recall)
    assert other.take(message("1"))[0] == ["1"]


async def test_as_long_as_it_can_not_be_recalled_messages_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the next time it is asked again."""
    answers: list[Any] = [SourceUnavailable("the database is away"), {}]

    async def recall(question: Any) -> Mapping[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    monkeypatch.setattr("airflow_provider_sharedstream.triggers.pipelines.recall", recall)
    trigger = SqsSharedStreamTrigger("q", dedupe_window_seconds=60, dedupe_durable=True)
    trigger.trigger_id = 7
    pipeline = trigger.pipeline()
    deliveries = [Delivery(id="1", body=b"{}")]
    for expected in (0, 1):
        receipt = Receipt(Batch(deliveries), "w")
        assert len(await pipeline.groups_for(deliveries, receipt)) == expected
        assert bool(receipt.failed) is not bool(expected)
    assert answers == []

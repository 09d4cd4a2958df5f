"""What is too old follows its policy, and mistakes in what holds messages are named."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_sharedstream.messages.sieves import Candidate, Fate, MaxAge
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger


def aged(seconds: float | None) -> Candidate:
    moment = None if seconds is None else datetime.now(timezone.utc) - timedelta(seconds=seconds)
    return at(moment)


def at(moment: datetime | None) -> Candidate:
    return Candidate(Delivery(id="1", body=b""), Message(id="1", body=None, published_at=moment))


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
    assert MaxAge(60).judge(at(naive)) is None
    assert MaxAge(5).judge(at(naive)) is not None


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
        ({"dedupe_window_seconds": 0}, "dedupe_window_seconds=0: expected None, or a number above 0 and up to 86,400"),
        ({"dedupe_key": "body.order"}, "dedupe_key='body.order': it has no effect without dedupe_window_seconds"),
        ({"dedupe_durable": True}, "dedupe_durable=True: it has no effect without dedupe_window_seconds"),
        ({"max_age_seconds": "1h"}, "max_age_seconds='1h': expected None, or a number above 0"),
        ({"max_age_seconds": 60, "on_expired": "drop"}, "on_expired='drop': expected one of"),
    ],
)
def test_mistakes_are_named_in_the_dag_file(arguments: Any, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        SqsSharedStreamTrigger("q", **arguments).serialize()
    assert said in str(caught.value)


def test_where_a_restart_hides_what_was_put_back_nothing_is_remembered_through_it() -> None:
    trigger = PubSubSharedStreamTrigger("p", "s", dedupe_window_seconds=60, dedupe_durable=True)
    with pytest.raises(InvalidArgument, match="says that somebody sought it.*exactly-once delivery"):
        trigger.serialize()


def test_watchers_that_differ_in_it_share_a_stream() -> None:
    plain, keen = SqsSharedStreamTrigger("q"), SqsSharedStreamTrigger("q", dedupe_window_seconds=60, max_age_seconds=9)
    assert plain.shared_stream_key() == keen.shared_stream_key()

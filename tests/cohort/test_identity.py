"""From a stored trigger to its stream, and a user's subclass, whose class the supervisor doesn't import."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_sharedstream.brokers.sqs.adapter import SqsSharedStreamProducer
from airflow_provider_sharedstream.supervisor.identity import identify
from airflow_provider_sharedstream.triggers.arguments import Argument
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from airflow_provider_sharedstream.triggers.mark import MARK
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

SQS = "airflow_provider_sharedstream.triggers.sqs.SqsSharedStreamTrigger"


class Plain(SqsSharedStreamTrigger):
    """A user's, with nothing of its own."""


class Strict(SqsSharedStreamTrigger):
    """A user's, whose constructor takes what it knows."""

    def __init__(self, sqs_queue: str, match: str | None = None) -> None:
        self.given = (sqs_queue, match)
        super().__init__(sqs_queue, match=match)


class Stricter(Strict):
    """A user's, of a user's."""

    def __init__(self, sqs_queue: str, match: str | None = None) -> None:
        super().__init__(sqs_queue, match)


def test_our_own_are_made_of_their_arguments() -> None:
    assert identify("w", SQS, {"sqs_queue": "q", "match": "body.a"}) == SqsSharedStreamTrigger("q").stream_identity()
    assert identify("w", SQS, {"sqs_queue": "q", "batch_size": 5}) != SqsSharedStreamTrigger("q").stream_identity()


def test_our_own_carry_no_mark() -> None:
    assert SqsSharedStreamTrigger("q").serialize() == (SQS, {"sqs_queue": "q"})


@pytest.mark.parametrize("trigger_class", [Plain, Strict, Stricter])
def test_a_users_subclass_is_known_by_its_mark(trigger_class: Any) -> None:
    classpath, stored = trigger_class("q", match="body.a").serialize()
    assert MARK in stored
    # Even where there is no such class.
    assert identify("w", "no.such.module.Trigger", stored) == SqsSharedStreamTrigger("q").stream_identity()
    # And the class takes what is stored, and stores the same again.
    again = trigger_class(**stored)
    assert again.shared_stream_key() == SqsSharedStreamTrigger("q").shared_stream_key()
    assert again.serialize() == (classpath, stored)
    assert again.unknown_arguments == {}


def test_no_users_module_is_imported() -> None:
    module = "tests.cohort.never_imported"
    assert identify("w", f"{module}.Trigger", {"sqs_queue": "q"}) is None
    assert module not in sys.modules


@pytest.mark.parametrize(
    ("queue", "same"),
    [
        ("orders", True),
        ("https://sqs.eu-west-1.amazonaws.com/123456789012/orders", True),
        ("arn:aws:sqs:eu-west-1:123456789012:orders", True),
        ("orders2", False),
    ],
)
def test_streams_of_one_queue_have_one_source(queue: str, same: bool) -> None:
    source = SqsSharedStreamTrigger("orders", batch_size=7).stream_identity().source
    assert (SqsSharedStreamTrigger(queue).stream_identity().source == source) is same


def test_a_source_without_required_arguments_is_named_by_those_that_reach_it() -> None:
    class Either(BrokerEventTrigger):
        producer_class = SqsSharedStreamProducer
        ARGUMENTS = {"queue": Argument(None, {}), "batch_size": Argument(100, {}, "stream")}

        def __init__(self, queue: str, **common: Any) -> None:
            super().__init__(common, queue=queue)

    assert Either("a").stream_identity().source != Either("b").stream_identity().source
    assert Either("a").stream_identity().source == Either("a", batch_size=7).stream_identity().source


@pytest.mark.parametrize(
    ("classpath", "arguments", "said"),
    [
        (SQS, ValueError("no key"), "can't be read"),
        ("airflow_provider_sharedstream.triggers.gone.Trigger", {"a": 1}, "can't be made"),
        ("airflow_provider_sharedstream.triggers.sqs.Any", {"a": 1}, "can't be made"),
        ("somebody.elses.Trigger", ValueError("no key"), ""),
        ("somebody.elses.Trigger", {MARK: "?"}, ""),
        ("somebody.elses.Trigger", {MARK: {"stream": 1, "source": 2}}, ""),
    ],
)
def test_what_can_not_be_told_is_said_where_it_is_ours(
    classpath: str, arguments: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert identify("orders/w", classpath, arguments) is None
    assert (said in caplog.text) if said else not caplog.records


def test_the_mark_keeps_a_triggers_identity_in_airflow() -> None:
    """The Dag processor compares what it would store with what is stored."""
    classpath, stored = Plain("q").serialize()
    assert BaseEventTrigger.hash(classpath, stored) == BaseEventTrigger.hash(*Plain("q").serialize())

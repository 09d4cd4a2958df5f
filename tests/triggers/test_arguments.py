"""Arguments: what is wrong is said in the Dag file, and survived in the triggerer."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.cohort import cohort_of
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.arguments import REQUIRED
from tests.triggers.classes import CLASSES, SMALLEST, Trigger, another, largest, smallest

pytestmark = pytest.mark.parametrize("trigger_class", CLASSES)

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    7,
    10**30,
    0.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "a.b.c",
    "\0",
    "\ud800",
    "[",
    "://",
    [],
    [1],
    ["x", None],
    [[]],
    {},
    {"a": 1},
    {1: 2},
    {"__type": "x"},
    (),
    {"x", 1},
    b"bytes",
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc),
    datetime.timedelta(1),
    decimal.Decimal("1.5"),
    object(),
]

SECRETS = {"headers", "params"}
"""REST's, whose values must not be shown."""


async def nothing() -> AsyncIterator[Any]:
    """A shared stream that ends at once."""
    return
    yield


async def as_in_triggerer(trigger_class: Trigger, arguments: dict[str, Any]) -> None:
    """Do all that the triggerer does with a stored trigger before the first message."""
    trigger = trigger_class(**arguments)
    trigger.trigger_id = 7
    key = trigger.shared_stream_key()
    hash(key)
    path, stored = trigger.serialize()
    assert path
    assert trigger.watcher_name
    trigger.stream_identity()
    trouble = trigger.trouble()
    assert trouble is None or isinstance(trouble, str)
    producer = trigger_class.create_shared_stream_producer(stored)
    assert isinstance(producer, BrokerStreamProducer)
    held = cohort_of(key)
    async for _ in trigger.filter_shared_stream(nothing()):
        raise AssertionError("an event out of nothing")
    assert len(held) == 0
    await producer.aclose()


def every_argument(trigger_class: Trigger) -> list[str]:
    return list(trigger_class.allowed_arguments())


def test_nothing_stored_kills_the_triggerer(trigger_class: Trigger) -> None:
    """A constructor that raises anything but TypeError ends the process, and `shared_stream_key` the sharing."""

    async def try_all() -> None:
        for name in every_argument(trigger_class):
            for junk in JUNK[::2]:
                try:
                    await as_in_triggerer(trigger_class, {**SMALLEST[trigger_class.__name__], name: junk})
                except Exception as error:
                    raise AssertionError(f"{name}={junk!r}: {type(error).__name__}: {error}") from error

    asyncio.run(try_all())


def test_the_first_watchers_filter_is_no_matter_of_the_streams(trigger_class: Trigger) -> None:
    """The others go on with the same stream when it has left."""

    async def build() -> None:
        trigger = largest(trigger_class, apply_function="no_such_module.function", batch_size=7)
        trigger.trigger_id = 7
        assert trigger.trouble() is not None
        producer = trigger_class.create_shared_stream_producer(trigger.serialize()[1])
        assert isinstance(producer, trigger_class.producer_class)
        assert producer.settings.batch_size == 7
        await producer.aclose()

    asyncio.run(build())


def test_a_stream_whose_arguments_are_wrong_is_built_and_held(trigger_class: Trigger) -> None:
    async def build() -> None:
        arguments = {**SMALLEST[trigger_class.__name__], "batch_size": "many"}
        producer = trigger_class.create_shared_stream_producer(arguments)
        assert isinstance(producer, BrokerStreamProducer)
        with pytest.raises(SourceUnavailable, match="batch_size='many': expected a whole number"):
            await producer.consumer.connect()
        await producer.aclose()

    asyncio.run(build())


def test_all_of_it_wrong_at_once(trigger_class: Trigger) -> None:
    async def try_all() -> None:
        for junk in JUNK:
            arguments = dict.fromkeys(every_argument(trigger_class), junk)
            try:
                await as_in_triggerer(trigger_class, arguments)
            except Exception as error:
                raise AssertionError(f"{junk!r}: {type(error).__name__}: {error}") from error

    asyncio.run(try_all())


def test_what_another_version_stored(trigger_class: Trigger, caplog: pytest.LogCaptureFixture) -> None:
    """Arguments that this one doesn't know: they do no harm, they are said, and they aren't lost when stored again."""
    arguments = {**SMALLEST[trigger_class.__name__], "of_the_future": {"b": [1], "a": 2}, "of_the_past": "x"}
    asyncio.run(as_in_triggerer(trigger_class, arguments))
    assert "of_the_future, of_the_past" in caplog.text
    trigger = trigger_class(**arguments)
    assert trigger.shared_stream_key() == smallest(trigger_class).shared_stream_key()
    trigger.trigger_id = 7
    assert trigger.trouble() is None
    assert set(trigger.serialize()[1]) == set(arguments)


def test_a_name_that_is_wrong_is_said_in_the_dag_file(trigger_class: Trigger) -> None:
    with pytest.raises(InvalidArgument, match=r"batch_sise=5: there is no such argument; did you mean 'batch_size'\?"):
        smallest(trigger_class, batch_sise=5).serialize()
    with pytest.raises(InvalidArgument, match=r"frobnicate=5: there is no such argument; there are .*batch_size"):
        smallest(trigger_class, frobnicate=5).serialize()


def test_a_value_that_is_wrong_is_said_with_name_value_and_what_is_expected(trigger_class: Trigger) -> None:
    """For each argument, each kind of value that it doesn't take."""
    from jsonschema import Draft202012Validator

    tried = 0
    for name, argument in trigger_class.allowed_arguments().items():
        validator = Draft202012Validator(argument.schema)
        for junk in (5, -1, 0.5, True, "", "two words", ["x", 5], {"a": 1}, None):
            if validator.is_valid(junk):
                continue
            trigger = smallest(trigger_class)
            trigger.arguments[name] = junk
            with pytest.raises(InvalidArgument) as caught:
                trigger.serialize()
            said = str(caught.value)
            assert said.startswith(f"{trigger_class.__name__}: ")
            assert name in said
            if name not in SECRETS:
                assert f"{name}={junk!r}: expected " in said, said
            tried += 1
    assert tried > 40


def test_an_error_of_a_dag_file_is_a_value_error(trigger_class: Trigger) -> None:
    assert issubclass(InvalidArgument, ValueError)
    with pytest.raises(ValueError, match="on_error='explode': expected one of 'reject', 'skip', 'release'"):
        smallest(trigger_class, on_error="explode").serialize()


def test_all_mistakes_are_said_at_once(trigger_class: Trigger) -> None:
    with pytest.raises(InvalidArgument) as caught:
        smallest(trigger_class, batch_size=0, on_error="explode", match="body.[").serialize()
    for name in ("batch_size=0", "on_error='explode'", "match: not a JMESPath expression at position"):
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["match", "decode", "unwrap", "dedupe_window_seconds", "dedupe_key"])
def test_a_mistake_is_said_once(trigger_class: Trigger, name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        smallest(trigger_class, **{name: 0}).serialize()
    assert str(caught.value).count(name) == 1, caught.value


def test_constructing_is_no_check(trigger_class: Trigger) -> None:
    trigger = smallest(trigger_class, batch_size="many", apply_function="no.such.function")
    trigger.trigger_id = 7
    assert "batch_size='many'" in str(trigger.trouble())
    trigger.serialize()


def test_what_only_a_filter_needs_is_not_in_the_key(trigger_class: Trigger) -> None:
    for make in (smallest, largest):
        trigger = make(trigger_class)
        for name, argument in trigger_class.allowed_arguments().items():
            changed = make(trigger_class)
            changed.arguments[name] = another(argument, trigger.arguments[name])
            same = changed.shared_stream_key() == trigger.shared_stream_key()
            assert same is (argument.scope == "filter"), f"{name} ({argument.scope})"


def test_watchers_that_differ_in_their_filters_share_a_stream(trigger_class: Trigger) -> None:
    keys = {
        smallest(trigger_class, **more).shared_stream_key()
        for more in (
            {},
            {"match": "body.a"},
            {"match": {"body.a": 1}},
            {"apply_function": "tests.triggers.classes.anything", "on_error": "skip"},
            {"decode": "json", "unwrap": ["sns"], "max_payload_bytes": None},
        )
    }
    assert len(keys) == 1


def test_the_key_says_nothing_of_defaults_that_are_spelt_out(trigger_class: Trigger) -> None:
    spelt = {
        name: argument.default
        for name, argument in trigger_class.allowed_arguments().items()
        if argument.default is not REQUIRED and name not in SMALLEST[trigger_class.__name__]
    }
    assert smallest(trigger_class, **spelt).shared_stream_key() == smallest(trigger_class).shared_stream_key()


def test_cohorts_are_not_kept_alive_by_keys(trigger_class: Trigger) -> None:
    key = smallest(trigger_class, batch_size=4711).shared_stream_key()
    cohort = cohort_of(key)
    token = cohort.join("w")
    del cohort, token
    gc.collect()
    assert len(cohort_of(key)) == 0

"""From a Dag file to the database to the triggerer, along Airflow's own way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models import crypto
from airflow.models.trigger import Trigger as Row
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow.sdk._shared.module_loading import import_string
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from airflow.serialization.serialized_objects import DagSerialization
from airflow.triggers.base import BaseEventTrigger
from cryptography.fernet import Fernet

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from airflow_provider_sharedstream.triggers.mark import MARK
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.triggers.classes import CLASSES, COMMON, LARGEST, SMALLEST, Trigger, largest, smallest

pytestmark = pytest.mark.parametrize("trigger_class", CLASSES)


@pytest.fixture(autouse=True)
def _fernet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key, so that arguments are encrypted as in a deployment."""
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    crypto.get_fernet.cache_clear()
    yield
    crypto.get_fernet.cache_clear()


class UsersOwn(SqsSharedStreamTrigger):
    """A subclass with a constructor of its own, as in a user's module."""

    def __init__(self, sqs_queue: str, colour: str = "red", **common: Any) -> None:
        super().__init__(sqs_queue, **common)
        self.colour = colour

    def serialize(self) -> tuple[str, dict[str, Any]]:
        path, stored = super().serialize()
        return path, {**stored, "colour": self.colour}


def stored(trigger: BrokerEventTrigger) -> Row:
    """The row that the Dag processor makes of it."""
    encoded = encode_trigger(trigger)
    row = Row(classpath=encoded["classpath"], kwargs=encoded["kwargs"])
    assert "gAAAA" in row.encrypted_kwargs, "encrypted"
    return row


def in_triggerer(row: Row, trigger_id: int = 7) -> BrokerEventTrigger:
    """What the triggerer makes of a row."""
    arguments = Row._decrypt_kwargs(row.encrypted_kwargs)
    decoded = {name: smart_decode_trigger_kwargs(value) for name, value in arguments.items()}
    trigger = import_string(row.classpath)(**decoded)
    trigger.trigger_id = trigger_id
    assert isinstance(trigger, BrokerEventTrigger)
    return trigger


def hash_of(classpath: str, arguments: dict[str, Any]) -> int:
    return BaseEventTrigger.hash(classpath, arguments)


def variants(trigger_class: Trigger) -> list[BrokerEventTrigger]:
    return [smallest(trigger_class), smallest(trigger_class, **COMMON), largest(trigger_class)]


def test_every_class_is_tried(trigger_class: Trigger) -> None:
    assert trigger_class.__name__ in SMALLEST
    assert trigger_class.__name__ in LARGEST


def test_what_is_stored_comes_back(trigger_class: Trigger) -> None:
    for trigger in variants(trigger_class):
        row = stored(trigger)
        back = in_triggerer(row)
        assert type(back) is trigger_class
        assert back.arguments == json.loads(json.dumps(trigger.arguments))
        assert not back.unknown_arguments
        assert back.shared_stream_key() == trigger.shared_stream_key()
        assert back.stream_identity() == trigger.stream_identity()
        assert back.trouble() is None or "tests" in str(back.trouble())


def test_a_row_has_the_hash_of_its_trigger(trigger_class: Trigger) -> None:
    """Where it has another, the row is deleted and made again at every parse of the Dag file."""
    for trigger in variants(trigger_class):
        encoded = encode_trigger(trigger)
        row = stored(trigger)
        assert hash_of(row.classpath, row.kwargs) == hash_of(encoded["classpath"], encoded["kwargs"])
        # Twice stored and constructed it is still the same.
        again = stored(in_triggerer(row))
        assert hash_of(again.classpath, again.kwargs) == hash_of(row.classpath, row.kwargs)


def test_through_a_serialised_dag_too(trigger_class: Trigger) -> None:
    """The scheduler compares rows with what it reads out of the serialised Dag."""
    for trigger in variants(trigger_class):
        asset = Asset("orders", watchers=[AssetWatcher(name="w", trigger=trigger)])
        with DAG("d", schedule=[asset]) as dag:
            pass
        data = json.loads(json.dumps(DagSerialization.to_dict(dag)))
        (read,) = [one for _, one in DagSerialization.from_dict(data).timetable.asset_condition.iter_assets()]
        encoded = encode_trigger(read.watchers[0].trigger)
        row = stored(trigger)
        assert hash_of(encoded["classpath"], encoded["kwargs"]) == hash_of(row.classpath, row.kwargs)


def test_what_is_stored_is_plain_and_in_a_fixed_order(trigger_class: Trigger) -> None:
    for trigger in variants(trigger_class):
        path, arguments = trigger.serialize()
        assert path == f"{trigger_class.__module__}.{trigger_class.__name__}"
        assert json.loads(json.dumps(arguments, allow_nan=False)) == arguments
        same = trigger_class(**dict(reversed(list(trigger.arguments.items()))))
        assert json.dumps(same.serialize()[1]) == json.dumps(arguments)


def test_defaults_are_not_stored(trigger_class: Trigger) -> None:
    """So that a default that changes with a version changes for rows that are there already, and their hash doesn't."""
    given = SMALLEST[trigger_class.__name__]
    _, arguments = smallest(trigger_class).serialize()
    assert set(arguments) == set(given)
    defaults = {
        name: argument.default
        for name, argument in trigger_class.allowed_arguments().items()
        if name not in given and repr(argument.default) != "REQUIRED"
    }
    assert smallest(trigger_class, **defaults).serialize()[1] == arguments


def test_the_order_of_names_in_match_is_no_difference(trigger_class: Trigger) -> None:
    one = smallest(trigger_class, match={"body.a": 1, "body.b": [2, 3], "headers.c": "x"})
    other = smallest(trigger_class, match={"headers.c": "x", "body.b": [2, 3], "body.a": 1})
    first, second = stored(one), stored(other)
    assert hash_of(first.classpath, first.kwargs) == hash_of(second.classpath, second.kwargs)
    assert json.dumps(one.serialize()[1]) == json.dumps(other.serialize()[1])


def test_a_tuple_is_stored_as_it_comes_back(trigger_class: Trigger) -> None:
    trigger = smallest(trigger_class, match={"body.a": (1, 2)})
    row = stored(trigger)
    again = stored(in_triggerer(row))
    assert hash_of(row.classpath, row.kwargs) == hash_of(again.classpath, again.kwargs)


def test_odd_texts_survive(trigger_class: Trigger) -> None:
    for text in ("body.a == 'ünï \U0001f600'", "body.\"a b\" == 'x'", "body.a == '\\\\'"):
        trigger = smallest(trigger_class, match=text)
        assert in_triggerer(stored(trigger)).arguments["match"] == text


def test_a_users_own_subclass(trigger_class: Trigger) -> None:
    trigger = UsersOwn("orders", colour="blue", match="body.a == `1`")
    row = stored(trigger)
    assert MARK in row.kwargs
    back = in_triggerer(row)
    assert isinstance(back, UsersOwn)
    assert back.colour == "blue"
    assert back.shared_stream_key() == SqsSharedStreamTrigger("orders").shared_stream_key()
    again = stored(back)
    assert hash_of(again.classpath, again.kwargs) == hash_of(row.classpath, row.kwargs)

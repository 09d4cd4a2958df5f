"""What may stand in the payload of an asset event, and the event itself.

A payload goes through more hands than it seems to: msgpack from the triggerer's runner to its supervisor, JSON into
the metadata database, JSON through the execution API, msgpack to the task. What one of them refuses brings the
triggerer down, or every task of every run that carries it. So a value is checked, or made safe, before it leaves the
filter.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.stream.errors import UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a body.

Measured on Airflow 3.3.2: a body nested 192 deep reaches its task, one of 193 stops every task of the run at its
start (pydantic's JSON parser ends at 200 with the envelope around it). MySQL's JSON type ends at 100. 64 leaves room
below both.
"""

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
"""What msgpack can carry between the triggerer's two processes."""

Refusal = Callable[[str, str], Any]
"""Called with the path of a value and what is wrong with it: raises, or returns what stands there instead."""

_AS_TEXT = (date, time, datetime)


def storable(value: Any, path: str = "body") -> Any:
    """Return ``value`` as strict JSON that Airflow can store and hand to a task.

    Text, whole numbers from -2**63 to 2**64 - 1, finite floats, booleans, None, lists and dicts stay as they are. A
    tuple becomes a list, a set a list in the order of its members' ``repr``; dates and times become ISO 8601 text, a
    Decimal and a UUID text, an enumeration member its value, a whole-number key of a dict its digits.

    :param value: what a decoder or an ``apply_function`` made.
    :param path: the name of the value in the reason of a refusal.
    :raises UndecodableMessage: anything else (bytes, NaN, infinities, lone surrogates, larger numbers, nesting over
        :data:`MAX_DEPTH`, two keys that become one, other objects), with the path and what came.
    """
    return _walk(value, path, 0, _refuse)


def described(value: Any, path: str = "") -> Any:
    """Return ``value`` as :func:`storable` does, with a text that describes it in place of each part that isn't
    storable.

    For headers and attributes, where one odd value is no reason to refuse the message.
    """
    return _walk(value, path, 0, lambda _, problem: f"<{problem}>")


def visible_text(text: str) -> str:
    """Return ``text`` with lone surrogates (bytes of a file name that are no text) written as ``\\udcff``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def base64_text(data: bytes | bytearray | memoryview) -> str:
    """Return ``data`` in standard base64."""
    return base64.b64encode(data).decode("ascii")


def _refuse(path: str, problem: str) -> Any:
    place = path if len(path) <= 120 else f"{path[:60]}...{path[-20:]}"
    raise UndecodableMessage(f"{place} can't be stored: {problem}")


def _walk(value: Any, path: str, depth: int, refuse: Refusal) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _text(value, path, refuse)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if MIN_INTEGER <= value <= MAX_INTEGER else refuse(path, _large_number(value))
    if kind is float:
        return value if math.isfinite(value) else refuse(path, f"the number {value} is not JSON")
    if isinstance(value, Enum):
        return _walk(value.value, path, depth, refuse)
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        if depth >= MAX_DEPTH:
            return refuse(path, f"nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            return _mapping(value, path, depth, refuse)
        try:
            items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        except ValueError:  # a number of thousands of digits has no repr
            return refuse(path, "a set whose members can't be put in order")
        return [_walk(item, f"{path}[{index}]", depth + 1, refuse) for index, item in enumerate(items)]
    return _other(value, path, depth, refuse)


def _mapping(value: Mapping[Any, Any], path: str, depth: int, refuse: Refusal) -> Any:
    made: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(key, str):
            name = visible_text(key)
            if name != key:
                refuse(f"a key of {path}", "text with a lone surrogate")
        elif isinstance(key, int) and not isinstance(key, bool):
            name = _digits(key)
        else:
            name = str(refuse(f"a key of {path}", f"{type(key).__name__} where text is expected"))
        if name in made:
            refuse(f"{path}.{name}", "two keys with this name")
        made[name] = _walk(item, f"{path}.{name}", depth + 1, refuse)
    return made


def _other(value: Any, path: str, depth: int, refuse: Refusal) -> Any:
    """Everything that is rare: subclasses of the plain types, and what is no JSON type."""
    if isinstance(value, str):
        return _text(str.__str__(value), path, refuse)
    if isinstance(value, int):
        return _walk(int(value), path, depth, refuse)
    if isinstance(value, float):
        return _walk(float(value), path, depth, refuse)
    if isinstance(value, _AS_TEXT):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID)):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return refuse(path, f"{len(value)} bytes where text or another JSON value is expected")
    return refuse(path, f"{type(value).__name__} where a JSON value is expected")


def _text(value: str, path: str, refuse: Refusal) -> Any:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return refuse(path, f"text with a lone surrogate: {visible_text(value[:100])}")
    return value


def _digits(number: int) -> str:
    # str() refuses more than 4,300 digits.
    return str(number) if number.bit_length() < 10_000 else hex(number)


def _large_number(number: int) -> str:
    size = (
        f"the whole number {number}" if number.bit_length() < 128 else f"a whole number of {number.bit_length()} bits"
    )
    return f"{size} is outside {MIN_INTEGER} to {MAX_INTEGER}"


def event_payload(
    source: str, stream: str, messages: Sequence[Message], dedupe_keys: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the payload of an event: the same shape from every source.

    :param source: the kind of source: ``sqs``, ``kafka``, ...
    :param stream: which one: a queue, topics, a directory.
    :param messages: at least one, each storable already.
    :param dedupe_keys: what the messages are recognized by when they come again; None: nothing.
    """
    payload = {"source": source, "stream": stream, "messages": [message.as_dict() for message in messages]}
    return payload if dedupe_keys is None else {**payload, "dedupe_keys": list(dedupe_keys)}


class MessagesEvent(TriggerEvent):
    """A trigger event that keeps its messages out of the log.

    The triggerer logs each event that fires, and waits until it is written: with bodies in it, a payload of 22 KB
    cuts the rate to a quarter, and every body can be read in the log.

    :param payload: what :func:`event_payload` made.
    """

    def __repr__(self) -> str:
        try:
            where = f"{self.payload['source']}:{self.payload['stream']}"
            messages = self.payload["messages"]
            first = messages[0]["id"] if messages else "none"
            return f"<{len(messages)} messages of {where}, first {first}>"
        except Exception:  # a log line must not fail on a payload that somebody else made
            return f"<{type(self).__name__}>"

    __str__ = __repr__

"""CloudEvents, structured, batched and binary."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_provider_sharedstream.messages.bodies import Decoded, short_text
from airflow_provider_sharedstream.messages.content_type import Declared, meaning_of
from airflow_provider_sharedstream.messages.parts import Inner, moment_of, numbered, opened
from airflow_provider_sharedstream.stream.errors import InvalidArgument, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

PREFIXES = ("ce_", "ce-", "cloudevents:", "cloudevents_")
"""How the attributes' headers begin: Kafka; HTTP and Pub/Sub; AMQP; AMQP where a colon can't be."""


def cloud_events(message: Message, inner: Inner) -> Sequence[Message] | None:
    """A CloudEvent (1.0 or 0.3): its data becomes the body.

    :raises InvalidArgument: the SDK isn't installed.
    :raises UndecodableMessage: it has a ``specversion``, but isn't a valid CloudEvent.
    """
    body = message.body
    if isinstance(body, list):
        if not body or not all(_is_event(event) for event in body):
            return None
        return numbered([_structured(message, event, inner) for event in body])
    if _is_event(body):
        return [_structured(message, body, inner)]
    attributes = _from_headers(message.headers)
    if "specversion" not in attributes:
        return None
    # The body was decoded by its content type already.
    return [
        opened(message, "cloudevents", _checked(attributes), Decoded(body, message.attributes.get("body_encoding")))
    ]


def _is_event(value: Any) -> bool:
    return isinstance(value, Mapping) and "specversion" in value and "id" in value and "type" in value


def _structured(message: Message, event: Mapping[str, Any], inner: Inner) -> Message:
    attributes = {name: value for name, value in event.items() if name not in ("data", "data_base64")}
    packed = event.get("data_base64")
    if attributes.pop("datacontentencoding", None) == "base64":  # version 0.3
        packed = event.get("data")
    if packed is None:
        decoded = Decoded(event.get("data"))
    else:
        try:
            data = base64.b64decode(packed, validate=True)
        except (ValueError, TypeError):
            raise UndecodableMessage("the CloudEvent's data isn't base64") from None
        declared = attributes.get("datacontenttype")
        kind, charset = meaning_of(declared) if isinstance(declared, str) else (None, None)
        decoded = inner(data, Declared(kind, charset), message.headers)
    return opened(message, "cloudevents", _checked(attributes), decoded)


def _from_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in headers.items():
        small = name.lower()
        for prefix in PREFIXES:
            if small.startswith(prefix):
                found[small[len(prefix) :]] = value
        if small == "content-type":
            found["datacontenttype"] = value
    return found


def require_sdk() -> tuple[Any, type[Exception]]:
    """Return what makes an event of a version, and the error that says what is wrong with one.

    :raises InvalidArgument: the SDK isn't installed.
    """
    try:
        from cloudevents.core.bindings.common import get_event_factory_for_version
        from cloudevents.core.exceptions import CloudEventValidationError
    except ImportError:
        raise InvalidArgument(
            "unwrap: cloudevents needs the CloudEvents SDK: pip install 'airflow-provider-sharedstream[cloudevents]'"
        ) from None
    return get_event_factory_for_version, CloudEventValidationError


def _checked(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes that have a value, if the SDK finds them valid."""
    factory_of, invalid = require_sdk()
    given = {name: value for name, value in attributes.items() if value is not None}
    moment = {"time": moment_of(given["time"])} if "time" in given else {}
    try:
        factory_of(str(given.get("specversion")))({**given, **moment}, None)
    except invalid as error:
        problems = "; ".join(str(problem) for found in getattr(error, "errors", {}).values() for problem in found)
        raise UndecodableMessage(f"not a valid CloudEvent: {short_text(problems)}") from None
    return given

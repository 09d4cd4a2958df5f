"""Envelopes that other services put around a message, and how they are taken off.

An envelope's contents become the body; what else it says goes into ``attributes``, under the envelope's name. Where
one envelope holds one thing, the id stays; where it may hold several, each gets its part (``<id>#0``), and all of
them are settled together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote_plus

from airflow_provider_sharedstream.messages.bodies import Decoded
from airflow_provider_sharedstream.messages.cloud_events import cloud_events
from airflow_provider_sharedstream.messages.content_type import NOTHING_DECLARED
from airflow_provider_sharedstream.messages.parts import Inner, moment_of, numbered, opened
from airflow_provider_sharedstream.stream.errors import InvalidArgument, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

Envelope = Callable[[Message, Inner], "Sequence[Message] | None"]
"""Returns what is in the envelope, or None where the message isn't in one."""


def sns(message: Message, inner: Inner) -> Sequence[Message] | None:
    """A notification of Amazon SNS, as it stands in SQS without raw delivery."""
    body = message.body
    if not _has(body, "Type", "TopicArn", "Message") or body["Type"] != "Notification":
        return None
    headers = dict(message.headers)
    encoded: dict[str, str] = {}
    for name, attribute in _mapping(body.get("MessageAttributes")).items():
        headers[name] = _mapping(attribute).get("Value")
        if _mapping(attribute).get("Type") == "Binary":
            encoded[name] = "base64"
    notes = {
        "topic_arn": body["TopicArn"],
        "message_id": body.get("MessageId"),
        "subject": body.get("Subject"),
        "timestamp": body.get("Timestamp"),
    }
    text = body["Message"]
    decoded = inner(text, NOTHING_DECLARED, headers) if isinstance(text, str) else Decoded(text)
    made = opened(message, "sns", notes, decoded)
    if encoded:
        made = made.replace(attributes={**made.attributes, "header_encoding": encoded})
    return [made.replace(headers=headers, published_at=moment_of(body.get("Timestamp")) or message.published_at)]


def s3(message: Message, inner: Inner) -> Sequence[Message] | None:
    """An event notification of Amazon S3: one message for each of its records; none for S3's test event."""
    body = message.body
    if _has(body, "Service", "Event") and body["Event"] == "s3:TestEvent":
        return []
    records = body.get("Records") if isinstance(body, dict) else None
    if not isinstance(records, list) or not all(_has(record, "s3", "eventName") for record in records):
        return None
    made = []
    for record in records:
        about = _mapping(record["s3"])
        thing = _mapping(about.get("object"))
        key = thing.get("key")
        notes = {
            "event": record["eventName"],
            "bucket": _mapping(about.get("bucket")).get("name"),
            # S3 writes the key as in a query string.
            "key": unquote_plus(key) if isinstance(key, str) else key,
            "version": thing.get("versionId"),
            "size": thing.get("size"),
        }
        made.append(opened(message, "s3", notes, Decoded(record)))
    return numbered(made)


def eventbridge(message: Message, inner: Inner) -> Sequence[Message] | None:
    """An event of Amazon EventBridge."""
    body = message.body
    if not _has(body, "detail-type", "source", "detail", "id"):
        return None
    notes = {
        "id": body["id"],
        "source": body["source"],
        "detail_type": body["detail-type"],
        "account": body.get("account"),
        "region": body.get("region"),
        "time": body.get("time"),
        "resources": body.get("resources"),
    }
    return [opened(message, "eventbridge", notes, Decoded(body["detail"]))]


def eventgrid(message: Message, inner: Inner) -> Sequence[Message] | None:
    """Events of Azure Event Grid in its own schema, one or a list. In the CloudEvents schema: ``cloudevents``."""
    body = message.body
    events = body if isinstance(body, list) else [body]
    if not events or not all(_has(event, "id", "eventType", "subject", "data") for event in events):
        return None
    made = []
    for event in events:
        notes = {
            "id": event["id"],
            "event_type": event["eventType"],
            "subject": event["subject"],
            "topic": event.get("topic"),
            "time": event.get("eventTime"),
            "data_version": event.get("dataVersion"),
        }
        made.append(opened(message, "eventgrid", notes, Decoded(event["data"])))
    return numbered(made) if isinstance(body, list) else made


def debezium(message: Message, inner: Inner) -> Sequence[Message] | None:
    """A change event of Debezium, with schema or without: the row after the change; where it was deleted, before."""
    body = message.body
    if _has(body, "schema", "payload"):
        body = body["payload"]
    if not _has(body, "op", "source") or not ("after" in body or "before" in body):
        return None
    before, after = body.get("before"), body.get("after")
    notes = {"op": body["op"], "source": body["source"], "ts_ms": body.get("ts_ms"), "before": before}
    return [opened(message, "debezium", notes, Decoded(before if after is None else after))]


def kafka_connect(message: Message, inner: Inner) -> Sequence[Message] | None:
    """What Kafka Connect's JSON converter writes with schemas enabled."""
    body = message.body
    if not isinstance(body, dict) or set(body) != {"schema", "payload"}:
        return None
    schema = body["schema"]
    if schema is not None and not _has(schema, "type"):
        return None
    notes = {"schema": _mapping(schema).get("name"), "version": _mapping(schema).get("version")}
    return [opened(message, "kafka_connect", notes, Decoded(body["payload"]))]


def cloud_storage(message: Message, inner: Inner) -> Sequence[Message] | None:
    """A Pub/Sub notification of Google Cloud Storage."""
    headers = message.headers
    if not _has(headers, "eventType", "bucketId", "objectId", "notificationConfig"):
        return None
    notes = {
        "event": headers["eventType"],
        "bucket": headers["bucketId"],
        "object": headers["objectId"],
        "generation": headers.get("objectGeneration"),
    }
    body = message.body
    if not isinstance(body, dict):  # the payload format NONE: all there is to say is in the headers
        body = {"bucket": headers["bucketId"], "name": headers["objectId"], "generation": notes["generation"]}
    return [opened(message, "cloud_storage", notes, Decoded(body))]


ENVELOPES: Mapping[str, Envelope] = {
    "sns": sns,
    "s3": s3,
    "eventbridge": eventbridge,
    "cloudevents": cloud_events,
    "eventgrid": eventgrid,
    "debezium": debezium,
    "kafka_connect": kafka_connect,
    "cloud_storage": cloud_storage,
}
"""What ``unwrap`` can name."""


def check_names(names: Any) -> tuple[str, ...]:
    """Return ``names`` as a tuple.

    :raises InvalidArgument: one of them is unknown.
    """
    given = (names,) if isinstance(names, str) else names
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or not all(isinstance(name, str) for name in given):
        raise InvalidArgument(f"unwrap: expected a list of names ({', '.join(ENVELOPES)}), got {names!r}")
    for name in given:
        if name not in ENVELOPES:
            raise InvalidArgument(f"unwrap: there is no envelope {name!r}: expected one of {', '.join(ENVELOPES)}")
    return tuple(given)


def unwrapped(message: Message, names: Sequence[str], inner: Inner) -> tuple[Message, ...]:
    """Take the envelopes off, in the order of ``names``, from each message that is in one.

    :param inner: decodes a body that an envelope carries as text or bytes.
    :raises InvalidArgument: what takes an envelope off isn't installed.
    :raises UndecodableMessage: what is inside can't be decoded, or the envelope is broken.
    """
    messages: Sequence[Message] = (message,)
    for name in names:
        envelope = ENVELOPES[name]
        found: list[Message] = []
        for outer in messages:
            try:
                parts = envelope(outer, inner)
            except InvalidArgument:
                raise  # what takes it off isn't installed: not the message's fault
            except UndecodableMessage as error:
                raise UndecodableMessage(f"in {name}: {error}") from None
            except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise UndecodableMessage(f"the envelope {name} is broken: {type(error).__name__}: {error}") from error
            found.extend((outer,) if parts is None else parts)
        messages = found
    return tuple(messages)


def _has(value: Any, *names: str) -> bool:
    return isinstance(value, Mapping) and all(name in value for name in names)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}

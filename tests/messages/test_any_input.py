"""Whatever comes, the pipeline goes on, and what leaves it can be stored by a PostgreSQL and read by a task."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from typing import Any

from airflow.triggers.base import TriggerEvent
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.payload import MessagesEvent, event_payload
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.messages.unwrap import ENVELOPES
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger
from tests.messages.airflow_path import Store, as_a_task_sees

NO_TEXT: dict[Any, Any] = {b"\xff": b"\xff"}

any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
any_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
# Names and values at which the decoder looks, so that every branch is met often.
header_names = (
    any_text
    | st.binary(max_size=8)
    | st.sampled_from(["content-type", "Content-Encoding", "ce_specversion", "eventType"])
)
header_values = (
    any_json
    | st.binary()
    | st.datetimes()
    | st.sampled_from(
        [
            "application/json",
            "text/plain; charset=utf-16",
            "text/html; charset=hex",
            "image/png",
            "gzip",
            "zstd",
            "base64",
            "1.0",
        ]
    )
)
envelopes = st.fixed_dictionaries(
    {},
    optional={
        "Type": st.just("Notification") | any_json,
        "TopicArn": any_json,
        "Message": any_json,
        "MessageAttributes": any_json,
        "Timestamp": any_text | st.just("2026-01-31T12:00:00.000Z"),
        "Records": any_json | st.lists(st.fixed_dictionaries({"s3": any_json, "eventName": any_json}), max_size=2),
        "detail-type": any_json,
        "source": any_json,
        "detail": any_json,
        "id": any_json,
        "schema": any_json,
        "payload": any_json,
        "op": any_json,
        "before": any_json,
        "after": any_json,
        "eventType": any_json,
        "subject": any_json,
        "data": any_json,
        "specversion": st.just("1.0") | any_json,
        "type": any_json,
        "data_base64": any_json,
    },
)
bodies = st.one_of(
    st.none(),
    st.binary(max_size=200),
    any_text,
    (any_json | envelopes).map(lambda value: json.dumps(value).encode()),
    any_json.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")),
    any_json.map(lambda value: gzip.compress(json.dumps(value).encode())),
    st.integers(1, 3000).map(lambda depth: b"[" * depth + b"]" * depth),
    st.integers(1, 6000).map(lambda digits: b"7" * digits),
)
deliveries = st.builds(
    Delivery,
    id=any_text,
    body=bodies,
    headers=st.dictionaries(header_names, header_values, max_size=4),
    key=st.none() | any_text,
    published_at=st.none() | st.datetimes(timezones=st.none() | st.timezones()),
    delivery_count=st.integers(0, 5),
    attributes=st.dictionaries(any_text, header_values, max_size=3),
)
decoders = st.builds(
    Decoder,
    st.sampled_from(["auto", "json", "text", "bytes"]),
    st.lists(
        st.sampled_from(sorted(ENVELOPES)),
        max_size=3,
    ),
)
expressions = st.sampled_from(
    [
        None,
        "body",
        "body.a > `1` || length(body) == `2`",
        "contains(body, 'a') && headers.x == key",
        "@ | keys(@)",
        "sort_by(body, &a)[0]",
        "published_at > '2026'",
        {"body": [None, 1, "a"], "headers.content-type": "application/json"},
    ]
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batch=st.lists(deliveries, min_size=1, max_size=3),
    decoder=decoders,
    expression=expressions,
    on_error=st.sampled_from(["reject", "skip", "release"]),
)
@example(
    batch=[Delivery(id="\udcff", body=b"\xff", headers=NO_TEXT, attributes={"n": float("nan")})],
    decoder=Decoder(),
    expression=None,
    on_error="reject",
)
@example(
    batch=[Delivery(id="x", body=b"1", published_at=datetime.max.replace(tzinfo=timezone.utc))],
    decoder=Decoder(),
    expression="published_at",
    on_error="reject",
)
def test_a_payload_is_storable_and_every_delivery_accounted_for(
    batch: list[Delivery], decoder: Decoder, expression: Any, on_error: Any, store: Store
) -> None:
    receipt = Receipt(Batch(batch), "watcher")
    counted: dict[str, int] = {}

    def count(name: str, number: int) -> None:
        counted[name] = counted.get(name, 0) + number

    pipeline = MessagePipeline(decoder, Matcher(expression), None, on_error, count)
    with capture_logs() as logs:
        found = asyncio.run(pipeline.messages_for(batch, receipt))
    assert not [entry for entry in logs if "could not be handled" in entry["event"]]
    event = MessagesEvent(payload=event_payload("test", "any", found))

    strict = json.dumps(event.payload, allow_nan=False, ensure_ascii=False).encode("utf-8")
    assert json.loads(strict) == event.payload
    seen = messages(as_a_task_sees(event, store))
    # What has the same id is one message to a Dag.
    assert {message.id for message in seen} == {message.id for message in found}
    assert [message.as_dict() for message in seen[:1]] == event.payload["messages"][:1]

    decoded = {d: _decoded(decoder, d) for d in batch}
    assert counted.get("matched", 0) == len(found)
    assert not receipt.failed or (on_error == "release" and decoder.named)
    judged = receipt.matched | set(receipt.rejected) | receipt.failed | (set(batch) if receipt.matched_all else set())
    if expression is None and on_error != "skip":
        # Nothing else but an envelope without contents (a test event of S3) may leave a delivery unmentioned.
        assert judged >= {d for d in batch if decoded[d] != ()}
    assert all(reason.encode("utf-8") for reason in receipt.rejected.values())
    assert sum(len(made or ()) for made in decoded.values()) >= len(found)


filter_arguments = st.fixed_dictionaries(
    {},
    optional={
        "decode": st.sampled_from(["auto", "json", "text", "bytes"]),
        "unwrap": st.lists(st.sampled_from(sorted(ENVELOPES)), max_size=3),
        "match": expressions,
        "on_error": st.sampled_from(["reject", "skip", "release"]),
        "max_payload_bytes": st.sampled_from([1024, None]),
        "on_oversize": st.sampled_from(["split", "omit", "reject"]),
        "dedupe_window_seconds": st.just(60),
        "max_age_seconds": st.just(60),
        "on_expired": st.sampled_from(["reject", "accept"]),
    },
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    batches=st.lists(st.lists(deliveries, min_size=1, max_size=3), min_size=1, max_size=3),
    arguments=filter_arguments,
    key=st.none() | st.sampled_from(["body.id", "headers", "length(body)"]),
)
def test_the_filter_never_raises(
    batches: list[list[Delivery]], arguments: dict[str, Any], key: str | None, store: Store
) -> None:
    """A trigger's own, as the triggerer runs it; what it yields is stored and read."""
    if "dedupe_window_seconds" in arguments and key is not None:
        arguments = {**arguments, "dedupe_key": key}
    raw = [Batch(batch) for batch in batches]

    async def stream() -> AsyncIterator[Batch]:
        for batch in raw:
            yield batch

    async def watch() -> list[TriggerEvent]:
        trigger = SqsSharedStreamTrigger("q", **arguments)
        trigger.trigger_id = 7
        assert trigger.trouble() is None
        return [event async for event in trigger.filter_shared_stream(stream())]

    with capture_logs() as logs:
        events = asyncio.run(watch())
    assert not [entry for entry in logs if "could not be handled" in entry["event"]]
    for event in events:
        ids = {message["id"] for message in event.payload["messages"]}
        assert {message.id for message in messages(as_a_task_sees(event, store))} == ids
        assert ids
    for batch in raw:
        (receipt,) = batch.receipts
        assert receipt.returned


def _decoded(decoder: Decoder, delivery: Delivery) -> tuple[Message, ...] | None:
    try:
        return decoder.messages_of(delivery)
    except UndecodableMessage:
        return None

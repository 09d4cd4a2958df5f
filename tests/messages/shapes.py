"""Inputs of every shape, and what a Dag sees of each: the table in docs/messages.md, which a test holds to it.

``python -m tests.messages.shapes`` writes the table anew.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DOCUMENT = Path(__file__).parents[2] / "docs" / "messages.md"
BEGIN, END = "<!-- shapes: written by tests/messages/shapes.py -->\n", "<!-- end of shapes -->"


class _Unset:
    """A message that isn't there."""


NONE_AT_ALL = _Unset()


@dataclass(frozen=True)
class Shape:
    """One input.

    :param came: what it is, in words.
    :param body: the raw body.
    :param sees: the bodies of the messages that a Dag gets; one body where there is one message.
    :param rejected: the reason with which it is rejected instead.
    :param has: what else the first message must have, by its path.
    :param shown: what the table shows in place of ``sees``, where that is long.
    """

    came: str
    body: bytes | str | None
    sees: Any = NONE_AT_ALL
    rejected: str | None = None
    headers: Mapping[Any, Any] = field(default_factory=dict)
    decode: str = "auto"
    unwrap: Sequence[str] = ()
    has: Mapping[str, Any] = field(default_factory=dict)
    several: bool = False
    shown: str | None = None

    @property
    def arguments(self) -> str:
        given = []
        if self.decode != "auto":
            given.append(f'`decode="{self.decode}"`')
        if self.unwrap:
            given.append(f"`unwrap={json.dumps(list(self.unwrap))}`")
        return ", ".join(given)

    @property
    def outcome(self) -> str:
        if self.rejected is not None:
            return f"rejected: {self.rejected}"
        text = self.shown
        if text is None:
            text = ", ".join(map(code, self.sees if self.several else [self.sees])) or "no message"
        return ", with ".join([text, *(f"`{path}` = {code(value)}" for path, value in self.has.items())])


def code(value: Any) -> str:
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


ORDER = {"order": 7}
AS_BASE64 = {"attributes.body_encoding": "base64"}
JSON_TYPE = {"content-type": "application/json"}
PNG = b"\x89PNG\r\n\x1a\n\x00"

SNS = {
    "Type": "Notification",
    "MessageId": "22b80b92",
    "TopicArn": "arn:aws:sns:eu-west-1:123456789012:orders",
    "Message": '{"order": 7}',
    "Timestamp": "2026-01-31T12:00:00.000Z",
    "MessageAttributes": {"kind": {"Type": "String", "Value": "order"}},
}


def s3_record(key: str) -> dict[str, Any]:
    return {
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": "incoming"}, "object": {"key": key, "size": 3}},
    }


S3 = {"Records": [s3_record("a+b%C3%A9.csv"), s3_record("c.csv"), s3_record("d.csv")]}
EVENTBRIDGE = {
    "version": "0",
    "id": "17793124",
    "detail-type": "Order Placed",
    "source": "shop",
    "account": "123456789012",
    "time": "2026-01-31T12:00:00Z",
    "region": "eu-west-1",
    "resources": [],
    "detail": ORDER,
}
CLOUD_EVENT = {
    "specversion": "1.0",
    "id": "a-1",
    "source": "/shop",
    "type": "order.placed",
    "datacontenttype": "application/json",
    "data": ORDER,
}
BINARY_CLOUD_EVENT = {
    "ce_specversion": b"1.0",
    "ce_id": b"a-1",
    "ce_source": b"/shop",
    "ce_type": b"order.placed",
    "content-type": b"application/json",
}
EVENT_GRID = {
    "id": "e-1",
    "eventType": "Microsoft.Storage.BlobCreated",
    "subject": "/blobs/a.csv",
    "eventTime": "2026-01-31T12:00:00Z",
    "data": {"url": "https://example.blob.core.windows.net/in/a.csv"},
    "dataVersion": "1",
    "metadataVersion": "1",
}
CHANGE = {"before": {"id": 1, "n": 1}, "after": {"id": 1, "n": 2}, "source": {"table": "orders"}, "op": "u", "ts_ms": 1}
GCS_HEADERS = {
    "eventType": "OBJECT_FINALIZE",
    "bucketId": "incoming",
    "objectId": "a.csv",
    "objectGeneration": "1",
    "notificationConfig": "projects/_/buckets/incoming/notificationConfigs/1",
    "payloadFormat": "NONE",
}

SHAPES: list[Shape] = [
    # --- what auto makes of bytes
    Shape("a JSON object", b'{"order": 7}', ORDER),
    Shape("a JSON list", b"[1, 2.5, true, null]", [1, 2.5, True, None]),
    Shape("a JSON number", b"42", 42),
    Shape("JSON's null", b"null", None),
    Shape("JSON in text, as SQS carries it", '{"name": "Zoë"}', {"name": "Zoë"}),
    Shape("JSON after a byte order mark", b'\xef\xbb\xbf{"order": 7}', ORDER),
    Shape(
        "JSON in UTF-16",
        '{"order": 7}'.encode("utf-16"),
        ORDER,
        headers={"content-type": "application/json; charset=utf-16"},
    ),
    Shape(
        "JSON under a type that says nothing",
        b'{"order": 7}',
        ORDER,
        headers={"content-type": "application/octet-stream"},
    ),
    Shape(
        "JSON under a type of its own",
        b'{"order": 7}',
        ORDER,
        headers={"Content-Type": "application/vnd.shop.order+json"},
    ),
    Shape("JSON with a name twice", b'{"a": 1, "a": 2}', {"a": 2}),
    Shape("JSON with a NUL character", b'"a\\u0000b"', "a\x00b"),
    Shape("the largest whole number", b"18446744073709551615", 2**64 - 1),
    Shape(
        "a body nested 64 deep",
        b"[" * 64 + b"]" * 64,
        json.loads("[" * 64 + "]" * 64),
        shown="the same, nested 64 deep",
    ),
    Shape("a list of 10,000 objects", compact([ORDER] * 10_000), [ORDER] * 10_000, shown="the same list"),
    Shape("text", b"order 7", "order 7"),
    Shape("text in another script", "заказ 7 📦".encode(), "заказ 7 📦"),
    Shape("text that begins like JSON", b"{order: 7}", "{order: 7}"),
    Shape("JSON that breaks off", b'{"order": ', '{"order": '),
    Shape("the word NaN", b"NaN", "NaN"),
    Shape("two lines of JSON", b'{"order": 7}\n{"order": 8}\n', '{"order": 7}\n{"order": 8}\n'),
    Shape("XML", b"<order>7</order>", "<order>7</order>", headers={"content-type": "application/xml"}),
    Shape("digits that are declared to be text", b"42", "42", headers={"content-type": "text/plain"}),
    Shape("Latin-1, declared", b"Zo\xeb", "Zoë", headers={"content-type": "text/plain; charset=iso-8859-1"}),
    Shape("Latin-1, undeclared", b"Zo\xeb", "Wm/r", has=AS_BASE64),
    Shape(
        "a megabyte in a codec for the names of hosts",
        b"a" * 500_000 + b"-" + b"b" * 500_000,
        headers={"content-type": "text/plain; charset=punycode"},
        decode="text",
        rejected="the content type names a charset that is unknown: punycode",
    ),
    Shape(
        "text in another such codec",
        b"xn--" + b"a" * 400_000,
        headers={"content-type": "text/plain; charset=IDNA"},
        decode="text",
        rejected="the content type names a charset that is unknown: idna",
    ),
    Shape(
        "text in a charset that isn't one",
        b"Zoe \xff",
        "Wm9lIP8=",
        headers={"content-type": "text/plain; charset=klingon"},
        has=AS_BASE64,
    ),
    Shape("a picture", PNG, b64(PNG), has=AS_BASE64),
    Shape(
        "Protobuf that could be text, and declared",
        b"\n\x05order",
        b64(b"\n\x05order"),
        headers={"content-type": "application/x-protobuf"},
        has=AS_BASE64,
    ),
    Shape("an empty body", b"", ""),
    Shape("no body (a Kafka tombstone)", None, None),
    Shape("a text of a million letters", b"x" * 1_000_000, "x" * 1_000_000, shown="the same, in an event of its own"),
    # --- compressed
    Shape("gzip, declared", gzip.compress(b'{"order": 7}'), ORDER, headers={"content-encoding": "gzip"}),
    Shape("gzip, undeclared", gzip.compress(b'{"order": 7}'), ORDER),
    Shape(
        "gzip in base64, as SQS carries it",
        b64(gzip.compress(b'{"order": 7}')),
        ORDER,
        headers={"Content-Encoding": "gzip"},
    ),
    Shape("deflate, declared", zlib.compress(b'{"order": 7}'), ORDER, headers={"content-encoding": "deflate"}),
    Shape("zstd, declared", zstd.compress(b'{"order": 7}'), ORDER, headers={"content-encoding": "zstd"}),
    Shape("zstd, undeclared", zstd.compress(b'{"order": 7}'), ORDER),
    Shape(
        "gzip in two members",
        gzip.compress(b'{"order": ') + gzip.compress(b"7}"),
        ORDER,
        headers={"content-encoding": "gzip"},
    ),
    Shape(
        "gzip with something behind it",
        gzip.compress(b'{"order": 7}') + b"more",
        headers={"content-encoding": "gzip"},
        rejected="the body is not gzip: Not a gzipped file (b'mo')",
    ),
    Shape(
        "zstd in two frames",
        zstd.compress(b'{"order": ') + zstd.compress(b"7}"),
        ORDER,
        headers={"content-encoding": "zstd"},
    ),
    Shape(
        "gzip that breaks off",
        gzip.compress(b'{"order": 7}')[:-9],
        headers={"content-encoding": "gzip"},
        rejected="the body is not whole: its gzip data ends early",
    ),
    Shape(
        "declared to be gzip, and isn't",
        b'{"order": 7}',
        headers={"content-encoding": "gzip"},
        rejected="the body is not gzip: Not a gzipped file (b'{\"')",
    ),
    Shape(
        "gzip that unpacks to 17 MiB",
        gzip.compress(b"\0" * 17 * 2**20),
        headers={"content-encoding": "gzip"},
        rejected="the body unpacks to more than 16777216 bytes",
    ),
    # --- JSON that can't be stored
    Shape("NaN inside JSON", b'{"price": NaN}', rejected="body.price can't be stored: the number nan is not JSON"),
    Shape("a number too large for a float", b"[1e400]", rejected="body[0] can't be stored: the number inf is not JSON"),
    Shape(
        "a whole number of 65 bits",
        b'{"id": 18446744073709551616}',
        rejected=f"body.id can't be stored: the whole number {2**64} is outside {-(2**63)} to {2**64 - 1}",
    ),
    Shape(
        "a number of 5,000 digits",
        b"[" + b"7" * 5000 + b"]",
        rejected="body can't be stored: it holds a whole number of thousands of digits",
    ),
    Shape(
        "half a surrogate pair",
        b'{"name": "\\ud83d"}',
        rejected="body.name can't be stored: text with a lone surrogate: \\ud83d",
    ),
    Shape(
        "a body nested 65 deep",
        b"[" * 65 + b"]" * 65,
        rejected="body" + "[0]" * 18 + "[0...0]" + "[0]" * 6 + " can't be stored: nested deeper than 64",
    ),
    Shape(
        "a body nested 100,000 deep",
        b"[" * 100_000 + b"]" * 100_000,
        rejected="body can't be stored: nested deeper than 64",
    ),
    Shape(
        "declared to be JSON, and isn't",
        b"order 7",
        headers=JSON_TYPE,
        rejected="the body is not JSON: Expecting value: line 1 column 1 (char 0)",
    ),
    Shape(
        "declared to be JSON, and not UTF-8",
        b"\xff",
        headers=JSON_TYPE,
        rejected="the body is not UTF-8 text: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
    ),
    # --- asked for by name
    Shape("JSON", b'{"order": 7}', '{"order": 7}', decode="text"),
    Shape("JSON", b'{"order": 7}', b64(b'{"order": 7}'), decode="bytes", has=AS_BASE64),
    Shape(
        "text", b"order 7", decode="json", rejected="the body is not JSON: Expecting value: line 1 column 1 (char 0)"
    ),
    Shape(
        "a picture",
        PNG,
        decode="text",
        rejected="the body is not UTF-8 text: 'utf-8' codec can't decode byte 0x89 in position 0: invalid start byte",
    ),
    Shape("four numbers in four bytes", b"\x01\x02\x03\xff", [1, 2, 3, 255], decode="tests.messages.decoders.numbers"),
    Shape(
        "five bytes",
        b"\x00" * 5,
        decode="tests.messages.decoders.numbers",
        rejected="tests.messages.decoders.numbers raised ValueError: expected 4 bytes, got 5",
    ),
    # --- headers
    Shape("headers in bytes", b"1", 1, headers={"kind": b"order"}, has={"headers.kind": "order"}),
    Shape(
        "headers in bytes that are no text",
        b"1",
        1,
        headers={"trace": b"\xff\x00"},
        has={"headers.trace": "/wA=", "attributes.header_encoding": {"trace": "base64"}},
    ),
    Shape(
        "a header that isn't JSON",
        b"1",
        1,
        headers={"x": float("nan")},
        has={"headers.x": "<the number nan is not JSON>"},
    ),
    # --- envelopes
    Shape(
        "SNS notification",
        json.dumps(SNS),
        ORDER,
        unwrap=("sns",),
        has={"attributes.sns.topic_arn": SNS["TopicArn"], "headers.kind": "order"},
    ),
    Shape("SNS, delivered raw", '{"order": 7}', ORDER, unwrap=("sns",)),
    Shape(
        "SNS notification of a text that isn't JSON",
        json.dumps({**SNS, "Message": "hi"}),
        decode="json",
        unwrap=("sns",),
        rejected="in sns: the body is not JSON: Expecting value: line 1 column 1 (char 0)",
    ),
    Shape(
        "S3 notification of three objects",
        compact(S3),
        S3["Records"],
        several=True,
        unwrap=("s3",),
        shown="three messages, `<id>#0` to `<id>#2`: the records",
        has={"attributes.s3.key": "a bé.csv"},
    ),
    Shape(
        "S3 notification by way of SNS",
        compact({**SNS, "Message": json.dumps(S3)}),
        S3["Records"],
        several=True,
        unwrap=("sns", "s3"),
        shown="three messages",
    ),
    Shape(
        "S3's test event",
        compact({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "incoming"}),
        [],
        several=True,
        unwrap=("s3",),
    ),
    Shape(
        "EventBridge event",
        compact(EVENTBRIDGE),
        ORDER,
        unwrap=("eventbridge",),
        has={"attributes.eventbridge.detail_type": "Order Placed"},
    ),
    Shape(
        "CloudEvent, structured",
        compact(CLOUD_EVENT),
        ORDER,
        unwrap=("cloudevents",),
        headers={"content-type": "application/cloudevents+json"},
        has={"attributes.cloudevents.type": "order.placed"},
    ),
    Shape(
        "CloudEvents, batched",
        compact([CLOUD_EVENT, CLOUD_EVENT]),
        [ORDER, ORDER],
        several=True,
        unwrap=("cloudevents",),
        headers={"content-type": "application/cloudevents-batch+json"},
        shown="two messages",
    ),
    Shape(
        "CloudEvent, binary",
        b'{"order": 7}',
        ORDER,
        unwrap=("cloudevents",),
        headers=BINARY_CLOUD_EVENT,
        has={"attributes.cloudevents.type": "order.placed"},
    ),
    Shape(
        "CloudEvent whose data is bytes",
        compact({**CLOUD_EVENT, "data": None, "datacontenttype": "image/png", "data_base64": b64(PNG)}),
        b64(PNG),
        unwrap=("cloudevents",),
        has=AS_BASE64,
    ),
    Shape(
        "a picture that an envelope names in JSON",
        PNG,
        {"bucket": "incoming", "name": "a.csv", "generation": "1"},
        headers=GCS_HEADERS,
        unwrap=("cloud_storage",),
        has={"attributes.body_encoding": None},
    ),
    Shape(
        "CloudEvent without its source",
        compact({**CLOUD_EVENT, "source": ""}),
        unwrap=("cloudevents",),
        rejected="in cloudevents: not a valid CloudEvent: Attribute 'source' must not be None or empty",
    ),
    Shape("Event Grid event", compact(EVENT_GRID), EVENT_GRID["data"], unwrap=("eventgrid",)),
    Shape(
        "Event Grid events, in a list",
        compact([EVENT_GRID, EVENT_GRID]),
        [EVENT_GRID["data"]] * 2,
        several=True,
        unwrap=("eventgrid",),
        shown="two messages, `<id>#0` and `<id>#1`",
    ),
    Shape(
        "Debezium, a changed row",
        compact(CHANGE),
        {"id": 1, "n": 2},
        unwrap=("debezium",),
        has={"attributes.debezium.op": "u", "attributes.debezium.before.n": 1},
    ),
    Shape(
        "Debezium, with its schema",
        compact({"schema": {"type": "struct"}, "payload": CHANGE}),
        {"id": 1, "n": 2},
        unwrap=("debezium",),
    ),
    Shape(
        "Debezium, a deleted row",
        compact({**CHANGE, "op": "d", "after": None}),
        {"id": 1, "n": 1},
        unwrap=("debezium",),
        has={"attributes.debezium.op": "d"},
    ),
    Shape(
        "Kafka Connect, with its schema",
        compact({"schema": {"type": "struct", "name": "order"}, "payload": ORDER}),
        ORDER,
        unwrap=("kafka_connect",),
    ),
    Shape(
        "Cloud Storage notification without payload",
        b"",
        {"bucket": "incoming", "name": "a.csv", "generation": "1"},
        headers=GCS_HEADERS,
        unwrap=("cloud_storage",),
    ),
    Shape("none of the envelopes asked for", b'{"order": 7}', ORDER, unwrap=("sns", "s3", "eventbridge", "debezium")),
]


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", "\\n")


def table() -> str:
    rows = ["| what came | arguments | what the Dag sees |", "|---|---|---|"]
    rows += [f"| {cell(_came(shape))} | {cell(shape.arguments)} | {cell(_short(shape.outcome))} |" for shape in SHAPES]
    return "\n".join(rows) + "\n"


def _came(shape: Shape) -> str:
    declared = [
        f"`{name}: {value}`"
        for name, value in shape.headers.items()
        if isinstance(value, str) and str(name).lower() in ("content-type", "content-encoding")
    ]
    return ", ".join([shape.came, *declared])


def _short(text: str) -> str:
    return text if len(text) <= 240 else f"{text[:100]} ... {text[-60:]}"


def document(text: str) -> str:
    """Return the document with the table as it should be."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")

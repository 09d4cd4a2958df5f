"""From a delivery to messages: once per delivery and way of decoding, however many watchers look at it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Literal, NamedTuple

import msgspec

from airflow_provider_sharedstream.messages.callables import resolve
from airflow_provider_sharedstream.messages.content_type import ContentType, content_type_of
from airflow_provider_sharedstream.messages.payload import (
    MAX_DEPTH,
    base64_text,
    described,
    storable,
    visible_text,
)
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

DecodeName = Literal["auto", "json", "text", "bytes"]

BODY_ENCODING = "body_encoding"
"""Attribute that says ``base64`` where the body is bytes in base64."""
HEADER_ENCODING = "header_encoding"
"""Attribute that names the headers that are bytes in base64: ``{"trace": "base64"}``."""
KEY_ENCODING = "key_encoding"
"""Attribute that says ``base64`` where the key is bytes in base64."""

_parse = msgspec.json.Decoder().decode
NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What the fast parser raises on anything but plain, storable JSON (UnicodeError is a ValueError)."""

_pack = msgspec.msgpack.Encoder().encode


class Decoded(NamedTuple):
    """A body, and how it is encoded where it isn't the thing itself."""

    body: Any
    encoding: str | None = None


class Failure(NamedTuple):
    """What is kept of a failure, so that the next watcher doesn't run into it again."""

    reason: str


class Decoder:
    """Turns deliveries into messages.

    :param decode: ``auto`` follows the content type, then the bytes: JSON if they are JSON, else UTF-8 text, else
        base64 with the attribute ``body_encoding``. ``json``, ``text`` and ``bytes`` (base64) insist. A dotted path
        names a callable that takes the bytes and the headers and returns the body.
    """

    __slots__ = ("_decode_body", "decode", "spec")

    def __init__(self, decode: str = "auto") -> None:
        self.decode = decode
        self.spec = decode
        """What tells one way of decoding from another; deliveries keep their messages under it."""
        named = {"auto": decode_auto, "json": decode_json, "text": decode_text, "bytes": decode_bytes}
        self._decode_body = named.get(decode)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decoder) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    @property
    def named(self) -> bool:
        """Whether the user asked for a way of decoding, which can fail on what ``auto`` would take."""
        return self.decode != "auto"

    def validate(self) -> None:
        """Import what ``decode`` names.

        :raises InvalidArgument: it can't be imported or called.
        """
        if self._decode_body is None:
            resolve(self.decode, "decode")

    def messages_of(self, delivery: Delivery) -> tuple[Message, ...]:
        """Return the messages of ``delivery``; decoded at the first call only.

        :raises UndecodableMessage: with the reason; again at every call.
        """
        known = delivery.decoded
        if known is None:
            known = delivery.decoded = {}
        made: tuple[Message, ...] | Failure | None = known.get(self.spec)
        if made is None:
            try:
                made = self._messages(delivery)
            except UndecodableMessage as error:
                made = Failure(str(error))
            known[self.spec] = made
        if isinstance(made, Failure):
            raise UndecodableMessage(made.reason)
        return made

    def _messages(self, delivery: Delivery) -> tuple[Message, ...]:
        return (self._message(delivery),)

    def _message(self, delivery: Delivery) -> Message:
        body, encoding = self._body(delivery)
        notes: dict[str, Any] = {}
        if encoding is not None:
            notes[BODY_ENCODING] = encoding
        headers = _storable_headers(delivery.headers, notes)
        key = delivery.key
        if key is not None and not (type(key) is str and key.isascii()):
            key = _storable_key(key, notes)
        attributes = delivery.attributes
        if attributes and not _is_plain(attributes):
            attributes = described(attributes, "attributes")
        if notes:
            attributes = {**attributes, **notes}
        identity = delivery.id
        published_at = delivery.published_at
        return Message(
            identity if identity.isascii() else visible_text(identity),
            body,
            headers,
            key,
            published_at if published_at is None or published_at.tzinfo is timezone.utc else _utc(published_at),
            delivery.delivery_count or None,
            attributes,
        )

    def _body(self, delivery: Delivery) -> Decoded:
        body = delivery.body
        if body is None:
            return Decoded(None)
        if self._decode_body is not None:
            return self._decode_body(body, delivery)
        return self._call(body, delivery)

    def _call(self, body: bytes | str, delivery: Delivery) -> Decoded:
        """Let the user's callable decode. :raises InvalidArgument: it can't be imported: not the message's fault."""
        function = resolve(self.decode, "decode")
        try:
            return Decoded(storable(function(_bytes(body), delivery.headers)))
        except UndecodableMessage:
            raise
        except Exception as error:
            raise UndecodableMessage(f"{self.decode} raised {type(error).__name__}: {_short(error)}") from error


def decode_auto(body: bytes | str, delivery: Delivery) -> Decoded:
    """Follow the content type, then the bytes."""
    kind, charset = content_type_of(delivery) if delivery.headers or delivery.attributes else (None, None)
    if kind is ContentType.BINARY:
        return decode_bytes(body, delivery)
    if kind is not ContentType.TEXT and charset is None:
        try:
            return Decoded(_fast_json(body))
        except NOT_PLAIN:
            pass  # not JSON, or JSON that has to be looked at closely
    if kind is ContentType.JSON:
        return Decoded(parse_json(_text_in(body, charset)))
    try:
        text = body if isinstance(body, str) else _text_in(body, charset)
    except UndecodableMessage:
        return decode_bytes(body, delivery)
    if kind is None and _like_json(text):
        try:
            return Decoded(parse_json(text))
        except _NotJson:
            pass
    return Decoded(storable(text))


def decode_json(body: bytes | str, delivery: Delivery) -> Decoded:
    """Insist on JSON."""
    try:
        return Decoded(_fast_json(body))
    except NOT_PLAIN:
        return Decoded(parse_json(_text_in(body, content_type_of(delivery)[1])))


def decode_text(body: bytes | str, delivery: Delivery) -> Decoded:
    """Insist on text in the charset of the content type, UTF-8 where it names none."""
    return Decoded(storable(_text_in(body, content_type_of(delivery)[1])))


def decode_bytes(body: bytes | str, delivery: Delivery) -> Decoded:
    """Carry the bytes as base64."""
    return Decoded(base64_text(_bytes(body)), "base64")


class _NotJson(UndecodableMessage):
    """The text isn't JSON at all, as against JSON that can't be stored."""


def parse_json(text: str) -> Any:
    """Return what ``text`` says, storable.

    :raises UndecodableMessage: it isn't JSON, or it can't be stored; the reason says where.
    """
    try:
        # Python's parser takes NaN and lone surrogates, so that the reason can name the place.
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise _NotJson(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise UndecodableMessage(f"body can't be stored: nested deeper than {MAX_DEPTH}") from None
    except ValueError:  # the interpreter's limit on the digits of a number
        raise UndecodableMessage("body can't be stored: it holds a whole number of thousands of digits") from None
    return storable(value)


def _fast_json(body: bytes | str) -> Any:
    """Parse JSON that is storable as it stands: a fifth of the time of looking at every value in Python.

    msgspec takes strict JSON and strict UTF-8 only, so that NaN, infinities and surrogates can't come through;
    packing refuses whole numbers that are too large; where there are few brackets, nothing can be nested deeply.
    """
    value = _parse(body)
    kind = type(value)
    if kind is str or kind is float or value is None:
        return value
    if kind is list or kind is dict:
        if _brackets(body) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
            raise OverflowError
    _pack(value)
    return value


def _brackets(body: bytes | str) -> int:
    if isinstance(body, str):
        return body.count("[") + body.count("{")
    return body.count(b"[") + body.count(b"{")


def _deeper_than(value: Any, depth: int) -> bool:
    level = [value]
    while level and depth:
        depth -= 1
        level = [
            item
            for parent in level
            for item in (parent.values() if type(parent) is dict else parent)
            if type(item) is dict or type(item) is list
        ]
    return bool(level)


def _like_json(text: str) -> bool:
    """Whether a text that strict parsing refused may still be meant as JSON, and then is refused with a reason.

    ``NaN`` alone is a word; inside a list it is a number that some JSON writers write.
    """
    start = text.lstrip(" \t\r\n\ufeff")[:1]
    return start in ("{", "[", '"') or start == "-" or start.isdigit()


def _text_in(body: bytes | str, charset: str | None) -> str:
    if isinstance(body, str):
        return body
    try:
        # A byte order mark is no part of the text.
        return body.decode(charset or "utf-8-sig")
    except LookupError:
        raise UndecodableMessage(f"the content type names a charset that is unknown: {charset}") from None
    except (UnicodeError, ValueError) as error:
        raise UndecodableMessage(f"the body is not {charset or 'UTF-8'} text: {_short(error)}") from None


def _bytes(body: bytes | str) -> bytes:
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body


def _short(error: BaseException) -> str:
    return visible_text(str(error)[:300])


def _is_plain(values: Mapping[str, Any]) -> bool:
    for name, value in values.items():
        kind = type(value)
        if not (kind is str and value.isascii()) and not (value is None or kind is bool):
            if kind is not int or not -(2**63) <= value < 2**63:
                return False
        if type(name) is not str or not name.isascii():
            return False
    return type(values) is dict


def _storable_headers(headers: Mapping[Any, Any], notes: dict[str, Any]) -> Mapping[str, Any]:
    if not headers or _is_plain(headers):
        return headers
    made: dict[str, Any] = {}
    encoded: dict[str, str] = {}
    for name, value in headers.items():
        text = _name(name)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value, encoding = _text_or_base64(bytes(value))
            if encoding is not None:
                encoded[text] = encoding
        made[text] = described(value, text)
    if encoded:
        notes[HEADER_ENCODING] = encoded
    return made


def _name(name: Any) -> str:
    if isinstance(name, (bytes, bytearray)):
        return name.decode("utf-8", "backslashreplace")
    return visible_text(name if isinstance(name, str) else str(name))


def _storable_key(key: Any, notes: dict[str, Any]) -> str:
    if isinstance(key, (bytes, bytearray, memoryview)):
        text, encoding = _text_or_base64(bytes(key))
        if encoding is not None:
            notes[KEY_ENCODING] = encoding
        return text
    return _name(key)


def _text_or_base64(data: bytes) -> tuple[str, str | None]:
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return base64_text(data), "base64"


def _utc(moment: datetime) -> datetime | None:
    try:
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (OverflowError, ValueError):  # the first or last day that Python knows, in another zone
        return None

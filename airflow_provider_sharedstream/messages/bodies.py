"""From the bytes of a body to a JSON value that Airflow can store."""

from __future__ import annotations

import codecs
import json
from codecs import BOM_UTF8
from typing import Any, NamedTuple

import msgspec

from airflow_provider_sharedstream.messages.compression import compression_of, decompress
from airflow_provider_sharedstream.messages.content_type import ContentType, Declared
from airflow_provider_sharedstream.messages.payload import MAX_DEPTH, base64_text, storable, visible_text
from airflow_provider_sharedstream.stream.errors import UndecodableMessage

NOT_PLAIN = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)
"""What the fast parser raises on anything but plain, storable JSON (UnicodeError is a ValueError)."""

_NOT_FOR_TEXT = frozenset({"idna", "punycode"})
"""Python takes them for charsets, but they are for the names of hosts: the time they take grows with the square of the
length, and a megabyte keeps the event loop for half a minute.
"""

_parse = msgspec.json.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode


class Decoded(NamedTuple):
    """A body, and how it is encoded where it isn't the thing itself."""

    body: Any
    encoding: str | None = None


class NotJson(UndecodableMessage):
    """The text isn't JSON at all, as against JSON that can't be stored."""


def decode_auto(body: bytes | str, declared: Declared) -> Decoded:
    """Follow what is declared, then the bytes: JSON if they are JSON, else text if they are text, else base64."""
    kind, charset, compression = declared
    if compression is not None:
        body = decompress(body, compression)
    if kind is ContentType.BINARY:
        return decode_bytes(body, declared)
    if kind is not ContentType.TEXT and charset is None:
        try:
            return Decoded(_fast_json(body))
        except NOT_PLAIN:
            pass  # not JSON, or JSON that has to be looked at closely
    if kind is ContentType.JSON:
        return Decoded(parse_json(_text_in(body, charset)))
    try:
        text = _text_in(body, charset)
    except UndecodableMessage:
        return _auto_bytes(_bytes(body), declared)
    if kind is None and _like_json(text):
        try:
            return Decoded(parse_json(text))
        except NotJson:
            pass
    return Decoded(storable(text))


def _auto_bytes(data: bytes, declared: Declared) -> Decoded:
    compression = compression_of(data)
    if compression is not None and declared.compression is None:
        try:
            unpacked = decompress(data, compression)
        except UndecodableMessage:
            return decode_bytes(data, declared)  # bytes that begin like it
        return decode_auto(unpacked, declared._replace(compression="identity"))  # once is enough
    return decode_bytes(data, declared)


def decode_json(body: bytes | str, declared: Declared) -> Decoded:
    """Insist on JSON."""
    body = _unpacked(body, declared)
    if declared.charset is None:
        try:
            return Decoded(_fast_json(body))
        except NOT_PLAIN:
            pass
    return Decoded(parse_json(_text_in(body, declared.charset)))


def decode_text(body: bytes | str, declared: Declared) -> Decoded:
    """Insist on text, in the declared charset."""
    return Decoded(storable(_text_in(_unpacked(body, declared), declared.charset)))


def decode_bytes(body: bytes | str, declared: Declared) -> Decoded:
    """Carry the bytes, just as they are, in base64."""
    return Decoded(base64_text(_bytes(body)), "base64")


def raw_bytes(body: bytes | str, declared: Declared) -> bytes:
    """Return the bytes without their compression, for a user's own decoder."""
    return _bytes(_unpacked(body, declared))


def parse_json(text: str) -> Any:
    """Return what ``text`` says, storable.

    :raises NotJson: it isn't JSON.
    :raises UndecodableMessage: it can't be stored; the reason says where.
    """
    try:
        # Python's parser takes NaN and lone surrogates, so that the reason can name the place.
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise NotJson(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise UndecodableMessage(f"body can't be stored: nested deeper than {MAX_DEPTH}") from None
    except ValueError:  # the interpreter's limit on the digits of a number
        raise UndecodableMessage("body can't be stored: it holds a whole number of thousands of digits") from None
    return storable(value)


def short_text(error: object) -> str:
    """Return the beginning of what ``error`` says, as text that can be stored."""
    return visible_text(str(error)[:300])


def _fast_json(body: bytes | str) -> Any:
    """Parse JSON that is storable as it stands, in a fifth of the time of looking at every value in Python.

    msgspec takes strict JSON and strict UTF-8 only, so that NaN, infinities and surrogates can't come through;
    packing refuses whole numbers that are too large; where there are few brackets, nothing can be nested deeply.
    """
    value = _parse(body)
    kind = type(value)
    if kind is str or kind is float or value is None:
        return value
    if (kind is dict or kind is list) and _brackets(body) > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
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

    ``NaN`` alone is a word; inside a list it is a number as some JSON writers write it.
    """
    start = text.lstrip(" \t\r\n")[:1]
    return start in ("{", "[", '"', "-") or start.isdigit()


def _unpacked(body: bytes | str, declared: Declared) -> bytes | str:
    return body if declared.compression is None else decompress(body, declared.compression)


def _text_in(body: bytes | str, charset: str | None) -> str:
    if isinstance(body, str):
        return body
    try:
        if charset is None:
            # A byte order mark is no part of the text. Python's own way to leave it out takes three times as long.
            return body.removeprefix(BOM_UTF8).decode("utf-8")
        if codecs.lookup(charset).name in _NOT_FOR_TEXT:
            raise LookupError
        return body.decode(charset)
    except LookupError:
        raise UndecodableMessage(f"the content type names a charset that is unknown: {charset}") from None
    except (UnicodeError, ValueError) as error:
        raise UndecodableMessage(f"the body is not {charset or 'UTF-8'} text: {short_text(error)}") from None


def _bytes(body: bytes | str) -> bytes:
    return body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body

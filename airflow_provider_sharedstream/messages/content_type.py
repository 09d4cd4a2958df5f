"""What the producer of a message says that its body is."""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple


class ContentType(Enum):
    """The three things that a declared content type can mean for decoding."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


class Declared(NamedTuple):
    """What is declared about a body.

    :param kind: what its content type means; None where there is none, or one that says nothing
        (``application/octet-stream`` is many clients' default).
    :param charset: None is UTF-8.
    :param compression: the content encoding, in small letters.
    """

    kind: ContentType | None = None
    charset: str | None = None
    compression: str | None = None


NOTHING_DECLARED = Declared()

_TYPE_NAMES = frozenset({"content-type", "contenttype", "content_type"})
_ENCODING_NAMES = frozenset({"content-encoding", "contentencoding", "content_encoding"})
_LENGTHS = frozenset(map(len, _TYPE_NAMES | _ENCODING_NAMES))
_BINARY = re.compile(
    r"(image|audio|video|font)/.+"
    r"|application/(x-|vnd\.(apache|google)\.|vnd\.)?(avro(-binary)?|protobuf|grpc|msgpack|cbor|bson|parquet|arrow\.\w+)"
    r"|application/(x-)?(gzip|zip|zstd|tar|pdf|wasm)"
)
_TEXT = re.compile(r"text/.+|application/(xml|(x-)?yaml|x-www-form-urlencoded|sql)|.+\+(xml|yaml)")


def declared_by(headers: Mapping[Any, Any], attributes: Mapping[str, Any]) -> Declared:
    """Return what the headers, or else the attributes, say of the body."""
    declared = NOTHING_DECLARED
    for values in (attributes, headers):  # the headers have the last word
        for name, value in values.items():
            if type(name) is str and len(name) in _LENGTHS:
                small = name.lower()
                if small in _TYPE_NAMES:
                    kind, charset = meaning_of(_as_text(value))
                    declared = Declared(kind, charset, declared.compression)
                elif small in _ENCODING_NAMES:
                    declared = declared._replace(compression=_as_text(value).strip().lower())
    return declared


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:256].decode("latin-1")
    return value[:256] if isinstance(value, str) else ""


@lru_cache(maxsize=256)
def meaning_of(content_type: str) -> tuple[ContentType | None, str | None]:
    """Return what a content type means for decoding, and its charset where that isn't UTF-8."""
    media_type, *parameters = (part.strip() for part in content_type.lower().split(";"))
    charset = next((p[8:].strip("\"' ") for p in parameters if p.startswith("charset=")), None) or None
    if charset is not None and _is_utf8(charset):
        charset = None
    if media_type in ("application/json", "text/json") or media_type.endswith("+json"):
        return ContentType.JSON, charset
    if _BINARY.fullmatch(media_type):
        return ContentType.BINARY, charset
    if _TEXT.fullmatch(media_type):
        return ContentType.TEXT, charset
    return None, charset


def _is_utf8(charset: str) -> bool:
    try:
        return codecs.lookup(charset).name in ("utf-8", "ascii")
    except (LookupError, ValueError):
        return False

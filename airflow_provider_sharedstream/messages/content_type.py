"""What the producer of a message says that its body is."""

from __future__ import annotations

import codecs
import re
from enum import Enum
from functools import lru_cache
from typing import Any

from airflow_provider_sharedstream.stream.delivery import Delivery


class ContentType(Enum):
    """The three things that a declared content type can mean for decoding."""

    JSON = "json"
    TEXT = "text"
    BINARY = "binary"


_NAMES = frozenset({"content-type", "contenttype", "content_type"})
_BINARY = re.compile(
    r"(image|audio|video|font)/.+"
    r"|application/(x-|vnd\.(apache|google)\.|vnd\.)?(avro(-binary)?|protobuf|grpc|msgpack|cbor|bson|parquet|arrow\.\w+)"
    r"|application/(x-)?(gzip|zip|zstd|tar|pdf|wasm)"
)
_TEXT = re.compile(r"text/.+|application/(xml|(x-)?yaml|x-www-form-urlencoded|sql)|.+\+(xml|yaml)")


def content_type_of(delivery: Delivery) -> tuple[ContentType | None, str | None]:
    """Return what the content type among the headers or attributes means, and its charset.

    None where there is none, or one that says nothing (``application/octet-stream`` is many clients' default).
    """
    for values in (delivery.headers, delivery.attributes):
        for name, value in values.items():
            if type(name) is str and len(name) in (11, 12) and name.lower() in _NAMES:
                return _meaning(_as_text(value))
    return None, None


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:256].decode("latin-1")
    return value[:256] if isinstance(value, str) else ""


@lru_cache(maxsize=256)
def _meaning(declared: str) -> tuple[ContentType | None, str | None]:
    media_type, *parameters = (part.strip() for part in declared.lower().split(";"))
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

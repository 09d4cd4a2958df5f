"""Compressed bodies."""

from __future__ import annotations

import base64
import gzip
import io
import zlib
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from airflow_provider_sharedstream.stream.errors import UndecodableMessage

MAX_DECOMPRESSED_BYTES = 16 * 2**20
"""Largest body after decompression: a few kilobytes can be made that unpack to gigabytes."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Since Python 3.14 in the standard library, with the same interface as its backport.
_ZSTD_MODULES = ("compression.zstd", "backports.zstd")


def compression_of(data: bytes) -> str | None:
    """Return the compression that ``data`` begins like. Neither beginning is UTF-8, so no text is taken for it."""
    if data.startswith(_GZIP_MAGIC):
        return "gzip"
    return "zstd" if data.startswith(_ZSTD_MAGIC) else None


def decompress(body: bytes | str, compression: str) -> bytes | str:
    """Return the body without its compression; as it is where ``compression`` names none that is known.

    gzip and deflate always work; zstd needs Python 3.14 or the package ``backports.zstd``. A compressed body that
    came as text (SQS carries nothing else) is taken as base64.

    :raises UndecodableMessage: it isn't what it says, or is larger than :data:`MAX_DECOMPRESSED_BYTES`.
    """
    read = _READERS.get(compression)
    if read is None:
        return body
    data = _from_base64(body, compression) if isinstance(body, str) else body
    try:
        if not data:
            raise EOFError
        made = read(data)
    except UndecodableMessage:
        raise
    except EOFError:
        raise UndecodableMessage(f"the body is not whole: its {compression} data ends early") from None
    except Exception as error:  # each library has its own
        raise UndecodableMessage(f"the body is not {compression}: {error}") from None
    if len(made) > MAX_DECOMPRESSED_BYTES:
        raise UndecodableMessage(f"the body unpacks to more than {MAX_DECOMPRESSED_BYTES} bytes")
    return made


def gunzip(data: bytes, limit: int) -> bytes:
    """Return the first ``limit`` bytes and one more, if there are so many, of all members that ``data`` has.

    :raises EOFError: it ends early; it is not gzip, or has something else behind it: OSError or zlib.error.
    """
    # Not a decompressor for each member: each would copy the rest, and a member may be as small as twenty bytes.
    with gzip.GzipFile(fileobj=io.BytesIO(data)) as opened:
        return opened.read(limit + 1)


def _inflate(data: bytes) -> bytes:
    engine = zlib.decompressobj()
    made = engine.decompress(data, MAX_DECOMPRESSED_BYTES + 1)
    if not engine.eof and len(made) <= MAX_DECOMPRESSED_BYTES:
        raise EOFError
    if engine.unused_data:
        raise ValueError(f"{len(engine.unused_data)} bytes follow its end")
    return made


def _unzstd(data: bytes) -> bytes:
    with _zstd().ZstdFile(io.BytesIO(data)) as opened:
        made: bytes = opened.read(MAX_DECOMPRESSED_BYTES + 1)
        return made


def _gunzip(data: bytes) -> bytes:
    return gunzip(data, MAX_DECOMPRESSED_BYTES)


_READERS: Mapping[str, Callable[[bytes], bytes]] = {
    "gzip": _gunzip,
    "x-gzip": _gunzip,
    "deflate": _inflate,
    "zlib": _inflate,
    "zstd": _unzstd,
}


def _from_base64(text: str, compression: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise UndecodableMessage(f"the body is said to be {compression}, but came as text that isn't base64") from None


def _zstd() -> Any:
    for name in _ZSTD_MODULES:
        try:
            return import_module(name)
        except ImportError:
            continue
    raise UndecodableMessage("the body is zstd, which needs Python 3.14 or the package backports.zstd on the triggerer")

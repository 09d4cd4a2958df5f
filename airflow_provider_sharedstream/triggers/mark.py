"""How the triggerer's supervisor knows the stream of a trigger whose class it must not import.

The supervisor holds the database, and Airflow keeps users' code out of it. Rows of this package's own classes are
constructed there. A row of a user's subclass carries a mark among its stored arguments, which is taken off again
before the subclass's own constructor sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.roster import stream_id

PACKAGE = __name__.partition(".")[0]

MARK = "shared_stream"
"""The stored argument that holds it."""


class StreamIdentity(NamedTuple):
    """What places a watcher.

    :param stream: the stream's name on the roster.
    :param source: the name of its source. Streams that differ in other arguments but not in this are kept on one
        triggerer, where all of them are held, loudly, instead of taking each other's messages away.
    """

    stream: str
    source: str

    @classmethod
    def of(cls, key: Hashable, source: Hashable) -> StreamIdentity:
        """Build it from a shared-stream key and what names the source."""
        return cls(stream_id(key), stream_id(source))

    def mark(self) -> dict[str, str]:
        """Return it as stored."""
        return self._asdict()


def read_mark(arguments: Mapping[str, Any]) -> StreamIdentity | None:
    """Return what stored arguments are marked with; None: they aren't."""
    mark = arguments.get(MARK)
    if not isinstance(mark, Mapping):
        return None
    stream, source = mark.get("stream"), mark.get("source")
    return StreamIdentity(stream, source) if isinstance(stream, str) and isinstance(source, str) else None


def is_ours(module: str) -> bool:
    """Whether a module is this package's."""
    return module == PACKAGE or module.startswith(f"{PACKAGE}.")


def without_mark(constructor: Callable[..., None]) -> Callable[..., None]:
    """Wrap a subclass's ``__init__``, so that it isn't given the mark."""

    @functools.wraps(constructor)
    def __init__(self: Any, *args: Any, **arguments: Any) -> None:
        arguments.pop(MARK, None)
        constructor(self, *args, **arguments)

    return __init__

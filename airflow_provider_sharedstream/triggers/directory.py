"""A directory."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.directory.adapter import IGNORED, DirectorySharedStreamProducer
from airflow_provider_sharedstream.messages.payload import visible_text
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.triggers.arguments import (
    FLAG,
    REQUIRED,
    SECONDS,
    TEXT,
    TEXT_OR_NONE,
    Argument,
    CommonArguments,
)
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

MOST_CONTENT_BYTES = 1_048_576


class DirectoryFileDeleteTrigger(BrokerEventTrigger):
    """Fires when files appear in a directory, and deletes or archives them.

    A file is removed only after every watcher that it matches has its event stored. One that no watcher matches stays,
    and is offered again when it changes or another watcher joins. Each content is a message of its own: a file that
    changes, or is replaced, is a new one.

    A message's body says what the file is: ``path``, ``name``, ``size``, ``modified_at``, and ``archived_path`` with an
    ``archive_directory``. With ``content_up_to_bytes`` the body is the content, and the attributes say it.

    :param directory: absolute path, the same wherever a triggerer may run. Links in it, and everything else that isn't
        a regular file, are ignored. Required.
    :param filename: the one name that this watcher wants. Either this or ``pattern``.
    :param pattern: a case-sensitive shell pattern of names (``*.csv``); with ``recursive`` of paths below the
        directory, where ``*`` stands for slashes too. Either this or ``filename``.
    :param poke_interval: seconds from one scan to the next; one scan serves all watchers. Default: 5.
    :param settle_seconds: a file is taken only when it has looked the same for so long, since it may still be written.
        Default: 5; 0 where files are always moved into the directory complete.
    :param archive_directory: absolute path of where files go instead of being deleted, each under a name of its own
        (``orders-5f3a9c1b2d4e6f70.csv``). Default: none.
    :param rejected_directory: absolute path of where rejected files go, each with its reason beside it in
        ``<name>.reason.json``. Default: none, and rejected files come again with a growing delay.
    :param recursive: whether directories inside are watched too. Default: False.
    :param ignore: shell patterns of names of files and directories that are ignored. Default: names of files that
        are being written, :data:`~airflow_provider_sharedstream.brokers.directory.adapter.IGNORED`.
    :param content_up_to_bytes: carry the content of files up to this size in the message. At most 1 MiB, since every
        task of the Dag run is sent it. Default: 0, none.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`. ``on_unmatched`` is
        ``leave`` by default here; ``accept`` and ``dead_letter`` are possible. ``decode`` is for contents.
    """

    producer_class = DirectorySharedStreamProducer
    shows_put_back = True
    ARGUMENTS = {
        "directory": Argument(REQUIRED, TEXT, example="/data/in"),
        "filename": Argument(None, TEXT_OR_NONE, "filter"),
        "pattern": Argument(None, TEXT_OR_NONE, "filter"),
        "poke_interval": Argument(5.0, {"type": "number", "minimum": 0.1, "maximum": 86_400}),
        "settle_seconds": Argument(5.0, SECONDS),
        "archive_directory": Argument(None, TEXT_OR_NONE),
        "rejected_directory": Argument(None, TEXT_OR_NONE),
        "recursive": Argument(False, FLAG),
        "ignore": Argument(list(IGNORED), {"type": "array", "items": {"type": "string", "minLength": 1}}),
        "content_up_to_bytes": Argument(0, {"type": "integer", "minimum": 0, "maximum": MOST_CONTENT_BYTES}),
        "on_unmatched": Argument("leave", {"enum": ["leave", "accept", "dead_letter"]}, "stream"),
    }

    def __init__(
        self,
        directory: str | os.PathLike[str] = REQUIRED,
        filename: str | None = None,
        pattern: str | None = None,
        poke_interval: float = 5.0,
        settle_seconds: float = 5.0,
        archive_directory: str | os.PathLike[str] | None = None,
        rejected_directory: str | os.PathLike[str] | None = None,
        recursive: bool = False,
        ignore: Sequence[str] = IGNORED,
        content_up_to_bytes: int = 0,
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "directory": _path(directory),
            "filename": filename,
            "pattern": pattern,
            "poke_interval": poke_interval,
            "settle_seconds": settle_seconds,
            "archive_directory": _path(archive_directory),
            "rejected_directory": _path(rejected_directory),
            "recursive": recursive,
            "ignore": list(ignore) if isinstance(ignore, tuple) else ignore,
            "content_up_to_bytes": content_up_to_bytes,
        }
        super().__init__(common, **own)

    def check(self) -> Iterator[str]:
        """Yield what no single argument shows."""
        given = self.arguments
        filename, pattern = given["filename"], given["pattern"]
        if (filename is None) == (pattern is None):
            yield f"filename={filename!r}, pattern={pattern!r}: expected one of the two; pattern='*' takes all files"
        for name in ("directory", "archive_directory", "rejected_directory"):
            path = given[name]
            if path is not None and (not os.path.isabs(path) or "\0" in path):
                yield f"{name}={path!r}: expected an absolute path such as '/data/in': triggerers run elsewhere"
            if path is not None and name != "directory" and path == given["directory"]:
                yield f"{name}={path!r}: this is the watched directory itself, so that its files would come again"
        for name in ("filename", "pattern"):
            if given[name] is not None:
                yield from self._never_matches(name, given[name])
        if given["on_unmatched"] == "dead_letter" and given["rejected_directory"] is None:
            yield "on_unmatched='dead_letter': there is nowhere to put them; it needs rejected_directory"
        if given["decode"] not in ("auto", "json") and not given["content_up_to_bytes"]:
            yield f"decode={given['decode']!r}: there is nothing to decode; it needs content_up_to_bytes"

    def _never_matches(self, argument: str, wanted: str) -> Iterator[str]:
        if wanted.startswith("/"):
            yield f"{argument}={wanted!r}: expected a name; `directory` has the rest of the path"
        elif "/" in wanted and not self.arguments["recursive"]:
            yield f"{argument}={wanted!r}: a slash is in no name; expected a name, or recursive=True"
        for ignored in self.arguments["ignore"]:
            if any(fnmatch.fnmatchcase(part, ignored) for part in wanted.split("/")):
                yield f"{argument}={wanted!r}: ignore has {ignored!r}, which hides it"

    def own_deliveries(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the files whose names are this watcher's: its filter, a user's own one too, sees no others."""
        return [delivery for delivery in deliveries if self._is_own_name(visible_text(delivery.handle.name))]

    @cached_property
    def _is_own_name(self) -> Callable[[str], object]:
        filename, pattern = self.arguments["filename"], self.arguments["pattern"]
        if isinstance(pattern, str):
            return re.compile(fnmatch.translate(pattern)).match
        # Arguments of another type are held back before a file comes.
        return lambda name: name == filename


def _path(given: Any) -> Any:
    """Return a path as text without what doesn't matter, so that equal ones look alike; anything else as it is."""
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    return os.path.normpath(given) if isinstance(given, str) and given else given

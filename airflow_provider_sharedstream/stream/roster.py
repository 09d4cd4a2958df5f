"""Who belongs to each stream, as the triggerer's supervisor reads it from Airflow's database.

The process that runs triggers has no access to the database. The supervisor that started it has: it writes the roster
to a file about once a second (``supervisor/watch.py``), and names the file in the environment. Times in it are of
``time.monotonic()``, which the processes of one machine share.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from typing_extensions import Self

from airflow_provider_sharedstream.stream import metrics

log = logging.getLogger(__name__)

PATH_VARIABLE = "AIRFLOW_SHAREDSTREAM_ROSTER"
"""The environment variable that names the file."""

FRESH_SECONDS = 15.0
"""A roster read longer ago says nothing about now. It is read once a second, by a process that may be busy."""

LOOK_SECONDS = 0.2
"""How often the file is looked at."""


def stream_id(key: Hashable) -> str:
    """Return the name of a shared-stream key on the roster."""
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


class Listed(NamedTuple):
    """A watcher on the roster.

    :param since: when the database was last read without it; 0: it was there at the first reading. What arrives from
        then on is for it to see.
    :param name: asset and watcher, for logs.
    """

    since: float
    name: str


class Departed(NamedTuple):
    """A watcher whose trigger was deleted although its Dag is active: a deploy, and its successor is on the way.

    :param until: when the database was last read with it. What arrives from then on is for its successor to see.
    :param name: asset and watcher, for logs.
    """

    until: float
    name: str


@dataclass(frozen=True, slots=True)
class StreamRoster:
    """Who belongs to one stream.

    :param owner: id of the triggerer job that the watchers belong to; None: no live one has any of them.
    :param members: by trigger id.
    :param departed: by trigger id; the stream waits for their successors.
    :param source: what names its source. Of sources that are different it may be equal.
    """

    owner: int | None
    members: Mapping[int, Listed] = field(default_factory=dict)
    departed: Mapping[int, Departed] = field(default_factory=dict)
    source: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """All streams.

    :param job: id of the triggerer job that wrote it.
    :param read_at: when the database was read.
    :param streams: by :func:`stream_id`.
    :param off: why there is none and there will be none.
    """

    job: int
    read_at: float
    streams: Mapping[str, StreamRoster] = field(default_factory=dict)
    off: str | None = None

    def to_json(self) -> str:
        """Return the content of the file."""
        streams = {
            name: {
                "owner": stream.owner,
                "members": stream.members,
                "departed": stream.departed,
                "source": stream.source,
            }
            for name, stream in self.streams.items()
        }
        return json.dumps({"job": self.job, "read_at": self.read_at, "off": self.off, "streams": streams})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return what :meth:`to_json` wrote.

        :raises ValueError: it isn't that, as are KeyError and TypeError.
        """
        found = json.loads(text)
        return cls(
            job=found["job"],
            read_at=found["read_at"],
            streams={name: _stream(content) for name, content in found["streams"].items()},
            off=found["off"],
        )


def _stream(content: Mapping[str, Any]) -> StreamRoster:
    return StreamRoster(
        owner=content["owner"],
        members={int(number): Listed(*entry) for number, entry in content["members"].items()},
        departed={int(number): Departed(*entry) for number, entry in content["departed"].items()},
        source=content["source"],
    )


class Sight(NamedTuple):
    """What can be seen of the roster now.

    :param roster: a fresh one.
    :param blind: there is none and nobody shall wait for one any longer. With neither, it is to be waited for.
    """

    roster: Roster | None
    blind: bool


class RosterReader:
    """Reads the roster's file when it has changed.

    :param path: the file; None: nobody writes one.
    :param clock: monotonic, the writer's.
    """

    def __init__(self, path: Path | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._started_at = clock()
        self._looked_at = float("-inf")
        self._seen: tuple[int, int] | None = None
        self._latest: Roster | None = None
        self._said: str | None = None

    @property
    def expected(self) -> bool:
        """Whether somebody writes a roster, or did."""
        return self._path is not None

    def look(self, timeout_seconds: float) -> Sight:
        """Return what can be seen now.

        :param timeout_seconds: after so long without a fresh roster, do without.
        """
        if self._path is None:
            return Sight(None, True)
        now = self._clock()
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._read(self._path)
        latest = self._latest
        if latest is not None and latest.off is not None:
            self._say(f"Streams do without a roster: {latest.off}", logging.INFO)
            return Sight(None, True)
        read_at = self._started_at if latest is None else latest.read_at
        age = now - read_at
        if latest is not None and age < FRESH_SECONDS:
            self._say(None)
            return Sight(latest, False)
        if age < FRESH_SECONDS + timeout_seconds:
            return Sight(None, False)
        self._say(
            f"The triggerer has not written who belongs to each stream for {age:.0f} s. Streams go on without it, and "
            "may miss messages for watchers that are elsewhere or late. Its log says why.",
            logging.ERROR,
        )
        return Sight(None, True)

    def _read(self, path: Path) -> None:
        try:
            status = path.stat()
            seen = (status.st_mtime_ns, status.st_ino)
            if seen != self._seen:
                self._latest = Roster.from_json(path.read_text(encoding="utf-8"))
                self._seen = seen
        except FileNotFoundError:
            # Not written yet.
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._say(f"The roster in {path} can't be read: {error}", logging.ERROR)

    def _say(self, text: str | None, level: int = logging.INFO) -> None:
        """Say it once, until something else is to be said."""
        kind = None if text is None else text.partition(" for ")[0]
        if kind == self._said:
            return
        if text is not None:
            log.log(level, text)
            if level >= logging.ERROR:
                metrics.StreamMetrics("", "").count(metrics.BLIND)
        elif self._said is not None:
            log.info("The triggerer writes again who belongs to each stream")
        self._said = kind


@cache
def roster_reader() -> RosterReader:
    """Return the reader of this process."""
    path = os.environ.get(PATH_VARIABLE)
    if not path:
        log.warning(
            "No supervisor of a triggerer writes here who belongs to each stream. Streams wait [sharedstream] "
            "join_grace_seconds for further watchers when they start, and for nobody after that."
        )
    return RosterReader(Path(path) if path else None)

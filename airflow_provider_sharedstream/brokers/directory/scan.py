"""Looking through a directory: which files are there, and which of them are no longer being written."""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from heapq import merge
from operator import attrgetter

from airflow_provider_sharedstream.brokers.directory.files import OURS, File, recover

log = logging.getLogger(__name__)

oldest_first = attrgetter("modified_ns", "name")

SORTED_AT_ONCE = 5_000
"""Sorting can't be interrupted; a hundred thousand files at once would keep the event loop for half a second."""


class Scanner:
    """Looks through one directory again and again; runs in a thread.

    A file is settled when it has looked the same for ``settle_seconds`` by our own clock: a network mount's may be
    wrong, and a modification time may be copied along.

    :param directory: its path.
    :param recursive: whether directories in it are looked through too; links to directories are not.
    :param ignore: shell patterns of names, of files and directories, that are passed over.
    :param settle_seconds: 0: a file is settled at first sight.
    :param progress: called at every entry.
    """

    def __init__(
        self,
        directory: str,
        *,
        recursive: bool,
        ignore: Sequence[str],
        settle_seconds: float,
        progress: Callable[[], None],
    ) -> None:
        self._directory = directory
        self._recursive = recursive
        self._ignore = ignore
        self._settle_seconds = settle_seconds
        self._progress = progress
        self._seen: dict[File, float] = {}
        self._said: set[str] = set()
        self._failure: OSError | None = None
        self.not_into: Collection[tuple[int, int]] = ()
        """Device and inode of directories that are not looked into: where files are moved to."""
        self.stopped = False
        """Set to make a scan end early."""
        self.scans = 0
        """Scans made so far."""

    def scan(self, wanted: Callable[[File], bool]) -> list[File] | None:
        """Return the files that are settled, the oldest first; None if stopped.

        :param wanted: leaves the others out.
        :raises OSError: the directory itself can't be read.
        """
        before, seen = self._seen, {}
        settled: list[list[File]] = [[]]
        for name, status in self._regular_files():
            if self.stopped:
                return None
            now = time.monotonic()
            file = File.seen(name, status)
            since = seen[file] = before.get(file, now)
            if now - since >= self._settle_seconds and wanted(file):
                if len(settled[-1]) == SORTED_AT_ONCE:
                    settled.append([])
                settled[-1].append(file)
        if self._failure is not None and not seen:
            raise self._failure
        self._seen = seen
        self.scans += 1
        for some in settled:
            some.sort(key=oldest_first)
        return list(merge(*settled, key=oldest_first))

    def is_present(self, file: File) -> bool:
        """Whether the last scan saw ``file``."""
        return file in self._seen

    def _regular_files(self) -> Iterator[tuple[str, os.stat_result]]:
        is_ignored = any_of(self._ignore)
        self._failure = None
        folders = [""]
        while folders:
            folder = folders.pop()
            for entry in self._entries(folder):
                self._progress()
                if entry.name.startswith(OURS):
                    recover(entry.path)
                    continue
                if is_ignored(entry.name):
                    continue
                name = f"{folder}/{entry.name}" if folder else entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    # One bad file hides no other; where all are bad, it's not the files.
                    self._failure = error
                    self._say_once("stat", f"{entry.path!r} can't be looked at: {error.strerror}")
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield name, status
                elif not stat.S_ISDIR(status.st_mode):
                    self._say_once("other", f"{entry.path!r} is a link, a pipe or another thing that is no file")
                elif self._recursive and (status.st_dev, status.st_ino) not in self.not_into:
                    folders.append(name)

    def _entries(self, folder: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(os.path.join(self._directory, folder) if folder else self._directory) as entries:
                yield from entries
        except OSError as error:
            if not folder:
                raise
            if not isinstance(error, FileNotFoundError):
                self._say_once(folder, f"{os.path.join(self._directory, folder)!r} can't be read: {error.strerror}")

    def _say_once(self, what: str, text: str) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning("%s; it is passed over, and what else is like it", text)


def any_of(patterns: Sequence[str]) -> Callable[[str], object]:
    """Return what says whether a name matches one of the shell patterns, capital letters told from small ones."""
    if not patterns:
        return lambda name: False
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns)).match

"""The directories that a stream is given: whether they can be used, whether they are still the same ones, and what is
moved between them.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timezone
from typing import Any, NoReturn

from airflow_provider_sharedstream.brokers.directory import files
from airflow_provider_sharedstream.brokers.directory.files import File
from airflow_provider_sharedstream.messages.payload import visible_text
from airflow_provider_sharedstream.stream.dead_letter import note
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.message import utc_text

log = logging.getLogger(__name__)

REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})
CHANGED_SECONDS = 60.0
"""After so long another directory in the place of the one that was there is taken as meant."""


class PlaceChanged(ConnectionError):
    """A directory is no longer the one that was connected to: unmounted, moved away or made anew."""


class Place:
    """A directory among the arguments.

    :param argument: its name.
    :param path: its value.
    """

    def __init__(self, argument: str, path: str) -> None:
        self.path = path
        self.identity: tuple[int, int] | None = None
        """Device and inode."""
        self.shown = f"{argument}={path!r}"
        """For messages."""
        self._changed_at: float | None = None

    def check(self, access: int) -> None:
        """Find out whether it can be used.

        :param access: as of :func:`os.access`.
        :raises SourceUnavailable: it can't; the text says what to change.
        :raises PlaceChanged: it is another one than at the last check.
        """
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as error:
            raise self.clear(error) from error
        if not stat.S_ISDIR(status.st_mode):
            raise SourceUnavailable(f"{self.shown}: this is a file, and a directory is expected")
        for needed, words in ((os.R_OK, "read"), (os.W_OK | os.X_OK, "write to")):
            if access & needed and not os.access(self.path, access & needed, effective_ids=True):
                raise SourceUnavailable(f"{self.shown}: {self._refused(words)}")
        self._recognize(status)

    def verify(self) -> None:
        """Make sure that it is still the directory that was checked.

        An unmounted one looks empty, and what is moved there is out of sight when it is mounted again.

        :raises PlaceChanged: it isn't.
        """
        try:
            self._recognize(os.stat(self.path))
        except (FileNotFoundError, NotADirectoryError):
            raise PlaceChanged(f"{self.shown} is gone") from None

    def _recognize(self, status: os.stat_result) -> None:
        identity = (status.st_dev, status.st_ino)
        if self.identity not in (None, identity):
            now = time.monotonic()
            changed_at = self._changed_at = self._changed_at or now
            if now - changed_at < CHANGED_SECONDS:
                raise PlaceChanged(f"{self.shown} is another directory than before: is it mounted?")
            log.warning("%s is another directory than before, and taken as meant now", self.shown)
        self.identity = identity
        self._changed_at = None

    def clear(self, error: Exception) -> Exception:
        """Return ``error``, or one that says what to change where somebody has to change something."""
        number = getattr(error, "errno", None)
        if number in NO_DIRECTORY or isinstance(error, ValueError):
            return SourceUnavailable(
                f"{self.shown}: there is no such directory where this triggerer runs. Create or mount it, or correct "
                f"the path. {error}"
            )
        if number in REFUSED:
            return SourceUnavailable(f"{self.shown}: {self._refused('read and write')}. {error}")
        if number in FULL:
            return SourceUnavailable(f"{self.shown}: there is no room left. {error}")
        return error

    @staticmethod
    def _refused(words: str) -> str:
        return f"the triggerer's user (id {os.geteuid()}) may not {words} it, which it must to take files away"


class Places:
    """Where files come from, and where they go. Everything here may take its time, and runs in a thread.

    :param directory: where they come from.
    :param archive_directory: where accepted ones go; None: they are deleted.
    :param rejected_directory: where rejected ones go.
    """

    def __init__(self, directory: str, archive_directory: str | None, rejected_directory: str | None) -> None:
        self._directory = Place("directory", directory)
        self._archive = None if archive_directory is None else Place("archive_directory", archive_directory)
        self._rejected = None if rejected_directory is None else Place("rejected_directory", rejected_directory)
        self.verify = self._directory.verify

    def check(self) -> Collection[tuple[int, int]]:
        """Find out whether all of them can be used; return device and inode of those that files go to.

        :raises SourceUnavailable: one can't; the text says what to change.
        """
        self._directory.check(os.R_OK | os.W_OK | os.X_OK)
        targets = [place for place in (self._archive, self._rejected) if place is not None]
        for place in targets:
            place.check(os.W_OK | os.X_OK)
            if place.identity == self._directory.identity:
                raise SourceUnavailable(f"{place.shown}: it is the watched directory itself, and its files come again")
        return {place.identity for place in targets if place.identity is not None}

    def raise_clearly(self, error: OSError) -> NoReturn:
        """Raise ``error``, or one that says what to change where somebody has to change something."""
        clear = self._directory.clear(error)
        raise clear from (None if clear is error else error)

    def path(self, file: File) -> str:
        """Return where ``file`` is."""
        return os.path.join(self._directory.path, file.name)

    def archived_path(self, file: File) -> str | None:
        """Return where ``file`` will be once it is accepted."""
        return None if self._archive is None else os.path.join(self._archive.path, file.name_when_kept)

    def describe(self, file: File) -> dict[str, Any]:
        """Return what a Dag is told of ``file``; plain JSON."""
        modified_at = modification_time(file)
        about = {
            "path": visible_text(self.path(file)),
            "name": visible_text(file.name),
            "size": file.size,
            "modified_at": None if modified_at is None else utc_text(modified_at),
        }
        return about if self._archive is None else {**about, "archived_path": self.archived_path(file)}

    def accept(self, deliveries: Sequence[Delivery]) -> dict[Delivery, BaseException]:
        """Take files away that are done with; return what failed."""

        def delete_or_archive(delivery: Delivery) -> None:
            file: File = delivery.handle
            target = self.archived_path(file)
            if target is None:
                files.delete(self.path(file), file)
            else:
                files.move(self.path(file), file, target)

        return self._each(deliveries, delete_or_archive, self._archive)

    def reject(self, deliveries: Sequence[Delivery], origin: str) -> dict[Delivery, BaseException]:
        """Take files away that are refused, each after the reason; return what failed."""
        place = self._rejected
        assert place is not None, "the adapter has no dead letters without it"

        def move_with_reason(delivery: Delivery) -> None:
            file: File = delivery.handle
            target = os.path.join(place.path, file.name_when_kept)
            if files.is_there(self.path(file), file):
                reason = {**note(delivery, origin).as_dict(), **self.describe(file)}
                reason.pop("archived_path", None)
                files.write_durably(target + files.REASON, reason)
                files.move(self.path(file), file, target)

        return self._each(deliveries, move_with_reason, place)

    def _each(
        self, deliveries: Sequence[Delivery], take_away: Callable[[Delivery], None], target: Place | None
    ) -> dict[Delivery, BaseException]:
        # Where the whole directory is gone, a file that isn't there hasn't been taken away by anybody.
        self._directory.verify()
        if target is not None:
            target.verify()
        failures: dict[Delivery, BaseException] = {}
        for delivery in deliveries:
            try:
                take_away(delivery)
            except OSError as error:
                failures[delivery] = (target or self._directory).clear(error)
        return failures


def modification_time(file: File) -> datetime | None:
    """Return when ``file`` was changed last; None where Python doesn't know the year."""
    try:
        return datetime.fromtimestamp(file.modified_ns / 1e9, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return None

"""The directories that a stream is given: whether they can be used, and whether they are still the same ones."""

from __future__ import annotations

import errno
import os
import stat

from airflow_provider_sharedstream.stream.errors import SourceUnavailable

REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NO_DIRECTORY = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG})


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
        """Device and inode, when it was checked last."""
        self._shown = f"{argument}={path!r}"

    def check(self, access: int) -> None:
        """Find out whether it can be used.

        :param access: as of :func:`os.access`.
        :raises SourceUnavailable: it can't; the text says what to change.
        """
        try:
            status = os.stat(self.path)
        except (OSError, ValueError) as error:
            raise self.clear(error) from error
        if not stat.S_ISDIR(status.st_mode):
            raise SourceUnavailable(f"{self._shown}: this is a file, and a directory is expected")
        for needed, words in ((os.R_OK, "read"), (os.W_OK | os.X_OK, "write to")):
            if access & needed and not os.access(self.path, access & needed, effective_ids=True):
                raise SourceUnavailable(f"{self._shown}: {self._refused(words)}")
        self.identity = (status.st_dev, status.st_ino)

    def verify(self) -> None:
        """Make sure that it is the directory that was checked.

        An unmounted one looks empty, and what is moved to it then is out of sight later.

        :raises PlaceChanged: it isn't; connecting anew helps, or says what is wrong.
        """
        try:
            status = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            raise PlaceChanged(f"{self._shown} is gone") from None
        if self.identity is not None and self.identity != (status.st_dev, status.st_ino):
            raise PlaceChanged(f"{self._shown} is another directory than before")

    def clear(self, error: Exception) -> Exception:
        """Return ``error``, or one that says what to change where somebody has to change something."""
        number = getattr(error, "errno", None)
        if number in NO_DIRECTORY or isinstance(error, ValueError):
            return SourceUnavailable(
                f"{self._shown}: there is no such directory on this triggerer's machine. Create or mount it, or correct "
                f"the path. {error}"
            )
        if number in REFUSED:
            return SourceUnavailable(f"{self._shown}: {self._refused('read and write')}. {error}")
        if number in FULL:
            return SourceUnavailable(f"{self._shown}: there is no room left: {error}")
        return error

    @staticmethod
    def _refused(words: str) -> str:
        return f"the triggerer's user (id {os.geteuid()}) may not {words} it, which it must to take files away"

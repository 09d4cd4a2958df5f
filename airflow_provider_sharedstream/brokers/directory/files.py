"""Files: which is which, and how one is taken away so that neither it nor the one that replaces it is lost."""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple

from airflow_provider_sharedstream.messages.payload import visible_text

OURS = ".sharedstream-"
"""What the names of our own passing files begin with; they are never offered."""
REASON = ".reason.json"
LONGEST_NAME = 255
"""Bytes of a name in a directory (NAME_MAX of Linux file systems)."""
LONGEST_SUFFIX = 32


class File(NamedTuple):
    """One content under one name. What is written to it, or takes its place, is another file.

    :param name: below the directory; bytes that are no text are lone surrogates, as :mod:`os` has them.
    :param inode: of its file system.
    :param changed_ns: when anything about it was changed last. Nobody can set it back, which tells a file from the one
        before it where both were copied with their modification time onto the same inode.
    :param modified_ns: when its content was changed last, by its file system's clock.
    :param size: in bytes.
    """

    name: str
    inode: int
    changed_ns: int
    modified_ns: int
    size: int

    @classmethod
    def seen(cls, name: str, status: os.stat_result) -> File:
        """Return the file that is ``status`` under ``name``."""
        return cls(name, status.st_ino, status.st_ctime_ns, status.st_mtime_ns, status.st_size)

    @property
    def tag(self) -> str:
        """What tells it from other files of its name."""
        return _digest(self.inode, self.changed_ns, self.modified_ns, self.size)

    @property
    def id(self) -> str:
        """The id of its message: the same until the file changes."""
        return f"{visible_text(self.name)}@{self.tag}"

    @property
    def name_when_kept(self) -> str:
        """Its name in another directory: one that no other file will ever have, so that nothing is overwritten."""
        folder, base = os.path.split(visible_text(self.name))
        stem, suffix = os.path.splitext(base)
        if len(suffix.encode()) > LONGEST_SUFFIX:
            stem, suffix = base, ""
        end = f"-{self.tag}{suffix}"
        room = LONGEST_NAME - len(end.encode()) - len(REASON)
        return os.path.join(folder, stem.encode()[:room].decode(errors="ignore") + end)

    def is_content_of(self, status: os.stat_result) -> bool:
        """Whether ``status`` is this content, under whatever name: a rename changes ``changed_ns``."""
        return (self.inode, self.modified_ns, self.size) == (status.st_ino, status.st_mtime_ns, status.st_size)


def read(path: str, file: File) -> bytes | None:
    """Return the content of ``file``; None if it isn't there any more."""
    try:
        with _open(path, file) as opened:
            content = opened.read(file.size + 1)
            return content if file == File.seen(file.name, os.fstat(opened.fileno())) else None
    except FileNotFoundError:
        return None


def is_there(path: str, file: File) -> bool:
    """Whether ``file`` is there as it was seen."""
    try:
        return File.seen(file.name, os.lstat(path)) == file
    except (FileNotFoundError, NotADirectoryError):
        return False


def delete(path: str, file: File) -> None:
    """Delete ``file``, and nothing that has taken its place."""
    if not is_there(path, file):
        return
    folder, base = os.path.split(path)
    aside = os.path.join(folder, f"{OURS}{_digest(file.inode, file.modified_ns, file.size)}-{base}")
    if len(os.fsencode(os.path.basename(aside))) > LONGEST_NAME:
        os.unlink(path)
        return
    # Between a look and an unlink somebody may put another file there. A rename takes whatever is there out of their
    # way, so that it can be looked at in peace.
    with suppress(FileNotFoundError):
        os.rename(path, aside)
        if file.is_content_of(os.lstat(aside)):
            os.unlink(aside)
        else:
            _put_back(aside, path)


def recover(aside: str) -> None:
    """Finish what :func:`delete` began in a process that was killed: delete what it meant, put back anything else."""
    folder, base = os.path.split(aside)
    tag, _, name = base.removeprefix(OURS).partition("-")
    with suppress(FileNotFoundError):
        status = os.lstat(aside)
        if not stat.S_ISREG(status.st_mode) or not name:
            return
        if _digest(status.st_ino, status.st_mtime_ns, status.st_size) == tag:
            os.unlink(aside)
        else:
            _put_back(aside, os.path.join(folder, name))


def move(path: str, file: File, target: str) -> None:
    """Move ``file``, and nothing that has taken its place; to another file system as well.

    :param target: made of :attr:`File.name_when_kept`: what is there already is the same file.
    """
    if not is_there(path, file):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    try:
        os.rename(path, target)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        if _copy(path, file, target):
            delete(path, file)
        return
    with suppress(FileNotFoundError):  # somebody has fetched it already
        if not file.is_content_of(os.lstat(target)):
            _put_back(target, path)


def write_durably(path: str, content: Mapping[str, Any]) -> None:
    """Write a JSON file that is there as a whole after a power failure, or not at all."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    passing = _passing(folder)
    try:
        with open(passing, "xb") as opened:
            opened.write(json.dumps(content, indent=2, ensure_ascii=False).encode())
            _sync(opened)
        os.replace(passing, path)
    finally:
        with suppress(OSError):
            os.unlink(passing)
    _sync_directory(folder)


def _copy(path: str, file: File, target: str) -> bool:
    """Copy ``file`` durably; return whether it was still there."""
    folder = os.path.dirname(target)
    passing = _passing(folder)
    try:
        with _open(path, file) as source, open(passing, "xb") as copy:
            shutil.copyfileobj(source, copy, 1024 * 1024)
            status = os.fstat(source.fileno())
            with suppress(OSError):  # not every file system has permissions
                os.fchmod(copy.fileno(), stat.S_IMODE(status.st_mode))
            _sync(copy)
            unchanged = file == File.seen(file.name, status)
        if unchanged:
            os.utime(passing, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(passing, target)
            _sync_directory(folder)
        return unchanged
    except FileNotFoundError:
        return False
    finally:
        with suppress(OSError):
            os.unlink(passing)


def _open(path: str, file: File) -> BinaryIO:
    """Open ``file`` for reading.

    :raises FileNotFoundError: it, or what has taken its place, isn't that file.
    """
    # Neither through a link nor into a pipe that has taken its place.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENOTDIR):
            raise FileNotFoundError(errno.ENOENT, "replaced", path) from None
        raise
    if file != File.seen(file.name, os.fstat(descriptor)):
        os.close(descriptor)
        raise FileNotFoundError(errno.ENOENT, "replaced", path)
    return os.fdopen(descriptor, "rb")


def _put_back(aside: str, path: str) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        pass  # its producer has replaced it meanwhile, as it would have without us
    except FileNotFoundError:
        return
    except OSError:  # no hard links here
        if not os.path.lexists(path):
            os.rename(aside, path)
            return
    os.unlink(aside)


def _passing(folder: str) -> str:
    """Return the path of a file that is not complete yet; nobody else uses it, not even for the same file."""
    return os.path.join(folder, OURS + secrets.token_hex(8))


def _digest(*parts: object) -> str:
    text = " ".join(map(str, parts))
    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()


def _sync(opened: BinaryIO) -> None:
    opened.flush()
    os.fsync(opened.fileno())


def _sync_directory(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EROFS):  # file systems without it
            raise
    finally:
        os.close(descriptor)

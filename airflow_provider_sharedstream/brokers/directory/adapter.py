"""A directory into which files are put.

==========================  ========================================================================
``directory_files``         which file is which, and how one is taken away; blocking
``directory_places``        the directories among the arguments, and what is moved between them; blocking
``directory_scan``          which files are there and no longer being written; blocking
``directory_thread``        how blocking calls are kept away from the event loop
``directory_fates``         what became of the files that were offered
==========================  ========================================================================
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from airflow_provider_sharedstream.brokers.directory import files
from airflow_provider_sharedstream.brokers.directory.fates import Fates
from airflow_provider_sharedstream.brokers.directory.files import File
from airflow_provider_sharedstream.brokers.directory.places import Places, modification_time
from airflow_provider_sharedstream.brokers.directory.scan import Scanner
from airflow_provider_sharedstream.brokers.directory.thread import OneThread, StillRunning, in_thread
from airflow_provider_sharedstream.messages.limits import BODY_OMITTED
from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import NOTHING, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

log = logging.getLogger(__name__)

BATCH = 100
"""Most files in one receive and in one settlement: as many as an event holds. A file system has no such limit."""
PARALLEL_SETTLES = 4
WAIT_SECONDS = 2.0
"""How long a receive waits when there is nothing."""
CONNECT_SECONDS = 20.0
HANGS_SECONDS = 30.0
"""A call that has not come on for so long is reported. It can't be given up: it ends when the file system answers."""
CONTENT_AT_ONCE_BYTES = 8 * 1024 * 1024
"""No further content is read in one receive after so much."""
UNREADABLE_SECONDS = 60.0
"""How long a file that can't be read is passed over."""
NOT_THE_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say something of this process or machine. Any other may be one file's: no permission, a lease that a file
server has on it, a broken block.
"""

IGNORED = (".*", "*~", "*.tmp", "*.temp", "*.part", "*.partial", "*.filepart", "*.crdownload", "*.swp")
"""Names that programs give to files that they are still writing: hidden ones (rsync, NFS), or with an ending (browsers,
WinSCP, lftp, editors).
"""

T = TypeVar("T")


class _Found(NamedTuple):
    """A file to be offered, with its content where that is wanted and not too large."""

    file: File
    content: bytes | None


class DirectoryConsumer:
    """Looks at one directory. The arguments are those of :class:`DirectoryFileDeleteTrigger`."""

    source = "directory"

    def __init__(
        self,
        directory: str,
        poke_interval: float = 5.0,
        settle_seconds: float = 5.0,
        archive_directory: str | None = None,
        rejected_directory: str | None = None,
        recursive: bool = False,
        ignore: Sequence[str] = IGNORED,
        content_up_to_bytes: int = 0,
    ) -> None:
        self.stream = str(directory)
        self.identity = f"directory:{self.stream}"
        self.limits = BrokerLimits(receive_batch=BATCH, settle_batch=BATCH, parallel_settles=PARALLEL_SETTLES)
        self.capabilities = Capabilities(
            native_dead_letter=rejected_directory is not None,
            delivery_count=False,
            dead_letters_by="rejected_directory",
        )
        self.dead_letter_place = rejected_directory
        self.lane_owner: LaneOwner | None = None
        self._poke_interval = poke_interval
        self._content_up_to_bytes = content_up_to_bytes
        self._places = Places(self.stream, archive_directory, rejected_directory)
        self._thread = OneThread("sharedstream-directory")
        self._scanner = Scanner(
            self.stream,
            recursive=recursive,
            ignore=ignore,
            settle_seconds=settle_seconds,
            progress=self._thread.progress,
        )
        self._fates = Fates()
        self._ready: deque[File] = deque()
        self._scan_at = 0.0
        self._unreadable: set[File] = set()
        self._connected = False

    @property
    def scans(self) -> int:
        """Scans made so far."""
        return self._scanner.scans

    async def connect(self) -> None:
        try:
            self.identity = await self._thread.call(f"looking at {self.stream!r}", self._check, CONNECT_SECONDS)
        except OSError as error:
            self._places.raise_clearly(error)
        self._scanner.stopped = False
        self._ready.clear()
        self._scan_at = 0.0
        self._connected = True

    def _check(self) -> str:
        self._scanner.not_into = self._places.check()
        return f"directory:{os.path.realpath(self.stream)}"

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        until = time.monotonic() + WAIT_SECONDS
        while (left := until - time.monotonic()) > 0:
            if not self._connected:
                raise NotConnected(f"{self.stream!r} was let go of")
            if wanted := self._next_ready(max_messages):
                found = await self._in_thread("looking at files of", partial(self._look, wanted), left)
                if deliveries := self._offer(found or (), max_messages):
                    return deliveries
            elif (early := self._scan_at - time.monotonic()) > 0:
                await asyncio.sleep(min(early, left))
            else:
                self._fates.joined(self._joins)
                ready = await self._in_thread("scanning", self._scan, left)
                if ready is not None:
                    self._ready = deque(ready)
                    self._scan_at = time.monotonic() + self._poke_interval
        return ()

    @property
    def _joins(self) -> int:
        return 0 if self.lane_owner is None else self.lane_owner.joins

    async def _in_thread(self, what: str, function: Callable[[], T], seconds: float) -> T | None:
        """Return what ``function`` returns, or None where that takes longer."""
        try:
            return await self._thread.call(f"{what} {self.stream!r}", function, seconds)
        except StillRunning as error:
            if error.idle_seconds > HANGS_SECONDS:
                raise
            return None
        except OSError as error:
            self._places.raise_clearly(error)

    def _scan(self) -> list[File] | None:
        self._places.verify()
        ready = self._scanner.scan(self._fates.may_be_offered)
        if ready is not None:
            self._fates.forget(self._scanner.is_present)
            self._unreadable = set(filter(self._scanner.is_present, self._unreadable))
        return ready

    def _next_ready(self, most: int) -> list[File]:
        wanted: list[File] = []
        room = CONTENT_AT_ONCE_BYTES
        while self._ready and len(wanted) < most and room > 0:
            file = self._ready.popleft()
            if self._fates.may_be_offered(file):
                wanted.append(file)
                room -= file.size if self._is_carried(file) else 0
        return wanted

    def _is_carried(self, file: File) -> bool:
        return 0 < self._content_up_to_bytes >= file.size

    def _look(self, wanted: Sequence[File]) -> list[_Found]:
        """Return those that are still there (the scan may be a while ago), with their content."""
        found: list[_Found] = []
        for file in wanted:
            self._thread.progress()
            path = self._places.path(file)
            if not self._is_carried(file):
                if files.is_there(path, file):
                    found.append(_Found(file, None))
                continue
            try:
                content = files.read(path, file)
            except OSError as error:
                if error.errno in NOT_THE_FILES:
                    raise
                self._pass_over(file, error)
                continue
            if content is not None:
                found.append(_Found(file, content))
        return found

    def _pass_over(self, file: File, error: OSError) -> None:
        if file not in self._unreadable:
            self._unreadable.add(file)
            log.warning("A file can't be read, and stays where it is: %s", error)
        self._fates.postpone(file, UNREADABLE_SECONDS)

    def _offer(self, found: Iterable[_Found], most: int) -> list[Delivery]:
        joins = self._joins
        # What was found for a receive that was given up may have been offered since.
        fresh = [one for one in found if self._fates.may_be_offered(one.file)][:most]
        for one in fresh:
            self._fates.offer(one.file, joins)
        return [self._delivery(file, content) for file, content in fresh]

    def _delivery(self, file: File, content: bytes | None) -> Delivery:
        about = self._places.describe(file)
        body = content
        if not self._content_up_to_bytes:
            body = msgspec.json.encode(about)
        elif content is None:
            about[BODY_OMITTED] = {"bytes": file.size}
        attributes: Any = about if self._content_up_to_bytes else NOTHING
        return Delivery(
            id=file.id,
            body=body,
            handle=file,
            published_at=modification_time(file),
            attributes=attributes,
            # What Python holds for the texts and the dictionaries around them.
            size=len(body or b"") + 1024,
        )

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        if disposition is Disposition.RELEASE:
            for delivery in deliveries:
                self._fates.release(delivery.handle, delivery.release_delay_seconds)
            return NO_FAILURES
        if disposition is Disposition.LEAVE:
            for delivery in deliveries:
                self._fates.leave(delivery.handle)
            return NO_FAILURES
        if disposition is Disposition.ACCEPT:
            take_away = partial(self._places.accept, deliveries)
        else:
            take_away = partial(self._places.reject, deliveries, self.identity)
        failures = await in_thread(take_away, "sharedstream-directory-settle")
        for delivery in deliveries:
            if delivery not in failures:
                self._fates.close(delivery.handle)
        return failures

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        raise NotImplementedError("without rejected_directory there is nowhere to put them")

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        return ()

    def is_transient(self, error: BaseException) -> bool:
        return isinstance(error, OSError)

    async def close(self) -> None:
        self._connected = False
        self._scanner.stopped = True


class NotConnected(ConnectionError):
    """The directory was let go of under a call."""


class DirectorySharedStreamProducer(BrokerStreamProducer):
    """The stream of a directory."""

    consumer_class = DirectoryConsumer

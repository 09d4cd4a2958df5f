"""A directory into which files are put."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from typing import Any, NamedTuple

import msgspec

from airflow_provider_sharedstream.brokers import directory_files as files
from airflow_provider_sharedstream.brokers.directory_fates import Fates
from airflow_provider_sharedstream.brokers.directory_files import File
from airflow_provider_sharedstream.brokers.directory_places import Place
from airflow_provider_sharedstream.brokers.directory_scan import Scanner
from airflow_provider_sharedstream.brokers.directory_thread import OneThread, StillRunning, in_thread
from airflow_provider_sharedstream.messages.limits import BODY_OMITTED
from airflow_provider_sharedstream.messages.payload import visible_text
from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.dead_letter import note
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.message import utc_text
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

BATCH = 100
"""Most files in one receive and in one settlement: as many as an event holds. A file system has no such limit."""
PARALLEL_SETTLES = 4
WAIT_SECONDS = 2.0
"""How long a receive waits when there is nothing."""
CONNECT_SECONDS = 20.0
HANGS_SECONDS = 30.0
"""A look at the directory that has not come on for so long is reported. It isn't given up: that can't be done."""
UNREADABLE_SECONDS = 60.0
"""How long a file that may not be read is passed over."""

IGNORED = (".*", "*~", "*.tmp", "*.temp", "*.part", "*.partial", "*.filepart", "*.crdownload", "*.swp")
"""Names that programs give to files that they are still writing: hidden ones (rsync, scp clients, NFS), and with endings
(browsers, WinSCP, lftp, editors).
"""


class Found(NamedTuple):
    """A file to be offered, and its content where that is wanted and not too large."""

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
        self.lane_owner: LaneOwner | None = None
        self.limits = BrokerLimits(receive_batch=BATCH, settle_batch=BATCH, parallel_settles=PARALLEL_SETTLES)
        self.capabilities = Capabilities(native_dead_letter=rejected_directory is not None, delivery_count=False)
        self.dead_letter_place = rejected_directory
        self.identity = f"directory:{self.stream}"
        self._place = Place("directory", self.stream)
        self._archive = None if archive_directory is None else Place("archive_directory", archive_directory)
        self._rejected = None if rejected_directory is None else Place("rejected_directory", rejected_directory)
        self._poke_interval = poke_interval
        self._content_up_to_bytes = content_up_to_bytes
        self._thread = OneThread("sharedstream-directory")
        self._fates = Fates()
        self._ready: deque[File] = deque()
        self._scan_at = 0.0
        self._open = False
        self._unreadable: set[File] = set()
        self.scanner = Scanner(
            self.stream,
            recursive=recursive,
            ignore=ignore,
            settle_seconds=settle_seconds,
            progress=self._thread.progress,
        )

    async def connect(self) -> None:
        try:
            self.identity = await self._thread.call(f"looking at {self.stream!r}", self._check, CONNECT_SECONDS)
        except OSError as error:
            raise self._place.clear(error) from error
        self.scanner.stopped = False
        self._ready.clear()
        self._scan_at = 0.0
        self._open = True

    def _check(self) -> str:
        self._place.check(os.R_OK | os.W_OK | os.X_OK)
        others = [place for place in (self._archive, self._rejected) if place is not None]
        for place in others:
            place.check(os.W_OK | os.X_OK)
            if place.identity == self._place.identity:
                raise SourceUnavailable(
                    f"{place.path!r} is the directory {self.stream!r} itself: what is moved there would come again"
                )
        self.scanner.not_into = {place.identity for place in others if place.identity is not None}
        return f"directory:{os.path.realpath(self.stream)}"

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        until = time.monotonic() + WAIT_SECONDS
        while (left := until - time.monotonic()) > 0:
            if not self._open:
                raise NotConnected("the directory was let go of")
            if wanted := self._next_ready(max_messages):
                look = partial(self._look, wanted)
                found = await self._in_thread(f"looking at files in {self.stream!r}", look, HANGS_SECONDS) or ()
                if offered := self._offer(found, max_messages):
                    return offered
            elif (early := self._scan_at - time.monotonic()) > 0:
                await _sleep(min(early, left))
            else:
                if self.lane_owner is not None:
                    self._fates.joined(self.lane_owner.joins)
                ready = await self._in_thread(f"scanning {self.stream!r}", self._scan, left)
                if ready is not None:
                    self._ready = deque(ready)
                    self._scan_at = time.monotonic() + self._poke_interval
        return ()

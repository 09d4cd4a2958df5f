"""A directory is held to the adapter's contract, with the files' content as the messages."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from airflow_provider_sharedstream.brokers.directory.adapter import DirectoryConsumer
from airflow_provider_sharedstream.brokers.directory.files import REASON
from airflow_provider_sharedstream.stream.dead_letter import Note
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance


class DirectorySource:
    def __init__(self, root: Path, *, dead_letters: bool) -> None:
        self.inbox = root / "inbox"
        self.inbox.mkdir(parents=True)
        self.rejected = root / "rejected" if dead_letters else None
        if self.rejected is not None:
            self.rejected.mkdir()
        self._numbers = itertools.count()

    def consumer(self) -> DirectoryConsumer:
        rejected = None if self.rejected is None else str(self.rejected)
        return DirectoryConsumer(
            str(self.inbox),
            poke_interval=0.1,
            settle_seconds=0.0,
            rejected_directory=rejected,
            content_up_to_bytes=1_048_576,
        )

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        for body in bodies:
            name = f"{next(self._numbers):06}.json"
            passing = self.inbox / f".{name}"
            passing.write_bytes(body)
            passing.rename(self.inbox / name)

    async def pending(self) -> int:
        return len(os.listdir(self.inbox))

    async def dead_letters(self) -> Sequence[DeadLetter]:
        if self.rejected is None:
            return []
        letters = []
        for path in self.rejected.glob(f"*{REASON}"):
            rejected = path.with_name(path.name.removesuffix(REASON))
            if rejected.exists():
                reason = json.loads(path.read_text())
                note = Note(**{name: reason[name] for name in Note._fields})
                letters.append(DeadLetter(rejected.read_bytes(), note.as_headers()))
        return letters


class DirectoryHarness:
    lease_seconds = None
    gaps: Mapping[str, str] = {
        "test_a_dead_letter_keeps_body_and_headers": "a file has no headers",
        "test_a_lane_is_held_where_it_failed": "a directory has no lanes",
    }

    def __init__(self, root: Path) -> None:
        self.root = root
        self._numbers = itertools.count()

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> DirectorySource:
        return DirectorySource(self.root / f"source-{next(self._numbers)}", dead_letters=dead_letters)

    def missing(self) -> DirectoryConsumer:
        return DirectoryConsumer(str(self.root / "missing"))

    async def restart(self) -> None:
        await self.cut()
        await self.heal()

    async def cut(self) -> None:
        """The directories go, as those of a mount that is taken away."""
        self.root.rename(self.root.with_name("unmounted"))

    async def heal(self) -> None:
        self.root.with_name("unmounted").rename(self.root)


class TestDirectory(Conformance):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> DirectoryHarness:
        root = tmp_path / "sources"
        root.mkdir()
        return DirectoryHarness(root)

"""A directory into which tests put files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.directory.adapter import DirectoryConsumer, DirectorySharedStreamProducer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger

QUICK: dict[str, Any] = {
    "poke_interval": 0.1,
    "settle_seconds": 0.0,
    "batch_window_seconds": 0.05,
    "release_delay_seconds": 0.5,
}


class Inbox:
    """The watched directory.

    :param root: where it, the archive and the place for rejected files are.
    """

    def __init__(self, root: Path) -> None:
        self.path = root / "inbox"
        self.archive = root / "archive"
        self.rejected = root / "rejected"
        for folder in (self.path, self.archive, self.rejected):
            folder.mkdir()

    def trigger(self, **given: Any) -> DirectoryFileDeleteTrigger:
        return DirectoryFileDeleteTrigger(**{"directory": self.path, **QUICK, **given})

    def put(self, name: str, content: str | bytes = "content") -> Path:
        """Move a complete file into the directory."""
        path = self.path / name
        passing = path.with_name(f".{path.name[:100]}.new")
        passing.write_bytes(content if isinstance(content, bytes) else content.encode())
        passing.rename(path)
        return path

    @property
    def names(self) -> list[str]:
        return sorted(os.listdir(self.path))


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)


class RecordedConsumer(DirectoryConsumer):
    """Keeps the ids of what it has offered."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.offered: list[str] = []

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        found = await super().receive(max_messages)
        self.offered += [delivery.id for delivery in found]
        return found


@pytest.fixture
def consumers(monkeypatch: pytest.MonkeyPatch) -> list[RecordedConsumer]:
    """The adapters that are made, in order."""
    made: list[RecordedConsumer] = []

    def make(**arguments: Any) -> RecordedConsumer:
        made.append(RecordedConsumer(**arguments))
        return made[-1]

    monkeypatch.setattr(DirectorySharedStreamProducer, "consumer_class", make)
    return made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams wait for further watchers only shortly."""
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.3")

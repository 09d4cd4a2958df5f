"""Processes that run watchers, and what they have stored."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.kafka.conftest import Topic
from tests.kafka.process import WATCHERS

MAX_IN_FLIGHT = 1000

Place = tuple[int, int]


class Store:
    """What the process has stored: by watcher, how often each partition and offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()
        self.lines: list[str] = []
        self._read = 0

    def look(self) -> list[str]:
        """Return the lines that are new."""
        with self.path.open() as file:
            file.seek(self._read)
            new = file.read()
        assert new.endswith("\n") or not new, "half an event"
        self._read += len(new)
        lines = new.split()
        found = [" ".join(lines[i : i + 3]) for i in range(0, len(lines), 3)]
        self.lines += found
        return found

    def by_watcher(self, since: int = 0) -> dict[int, Counter[Place]]:
        """By watcher; of the lines from number `since` on."""
        found: dict[int, Counter[Place]] = {number: Counter() for number in range(1, WATCHERS + 1)}
        for line in self.lines[since:]:
            watcher, partition, offset = map(int, line.split())
            found[watcher][(partition, offset)] += 1
        return found


def start(store: Store, topic: Topic) -> subprocess.Popen[bytes]:
    arguments = json.dumps(topic.arguments(max_in_flight=MAX_IN_FLIGHT))
    with store.path.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.process", str(store.path), arguments],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS": "0.5"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

"""Triggerers in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.airflow_loop import LONG_SECONDS
from tests.service_bus.conftest import ServiceBus

if TYPE_CHECKING:
    from typing_extensions import Self


class Triggerer:
    """A process with one watcher; stopped at the end, as by a deploy.

    :param folder: takes what it stores, and its log.
    :param queue: what it watches.
    :param confirm: whether it is ever told that an event is stored.
    :param env: beside this process's environment.
    :param arguments: of the trigger.
    """

    def __init__(
        self, folder: Path, queue: str, *, confirm: bool = True, env: Mapping[str, str] | None = None, **arguments: Any
    ) -> None:
        folder.mkdir(exist_ok=True)
        self._stored = folder / "stored.jsonl"
        self._log = folder / "log"
        trigger = {"queue_name": queue, "azure_service_bus_conn_id": ServiceBus.conn_id, **arguments}
        given = {"trigger": trigger, "stored": str(self._stored), "confirm": confirm}
        own = {"AIRFLOW_HOME": str(folder / "airflow"), "AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS": "0"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.service_bus.process", json.dumps(given)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **own, **(env or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        # Its standard input ends.
        self.process.communicate(timeout=LONG_SECONDS)
        print(self.log)

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def stored(self) -> list[Any]:
        """The bodies that are stored, in their order."""
        lines = self._stored.read_text().splitlines() if self._stored.exists() else []
        # The last line may be half-written; it was not confirmed then either.
        return [json.loads(line) for line in lines if line.endswith("}")]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait(condition: Callable[[], Any], what: str, seconds: float = LONG_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)

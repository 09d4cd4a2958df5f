"""A triggerer in a process of its own: to be killed, to have an environment of its own, or to run with fewer rights.

The tests' end is :class:`TriggererProcess`; `python -m tests.triggerer_process` is the other.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger
from services.process import wait_until
from tests.airflow_loop import LONG_SECONDS, Watcher, triggerer

if TYPE_CHECKING:
    from typing_extensions import Self


class TriggererProcess:
    """It runs one watcher, and stores its messages in a file, durably before an event is confirmed.

    :param folder: takes what it stores and says; whoever is started there later goes on with both.
    :param trigger: started there from what it serializes to, as by Airflow.
    :param confirm: whether it is ever told that an event is stored.
    :param before: what stands before the command.
    :param env: beside this process's environment.
    """

    def __init__(
        self,
        folder: Path,
        trigger: BrokerEventTrigger,
        *,
        confirm: bool = True,
        before: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._stored = folder / "stored.jsonl"
        self._log = folder / "log"
        home = folder / "airflow"
        home.mkdir(parents=True, exist_ok=True)
        self._stored.touch()
        given = json.dumps({"trigger": trigger.serialize(), "stored": str(self._stored), "confirm": confirm})
        own = {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS": "0",
            "PYTHONUNBUFFERED": "1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*before, sys.executable, "-m", __name__, given],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **own, **(env or {})},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process.poll() is None:
            self.stop()

    def stop(self) -> None:
        """End it as a deploy does. Raises AssertionError when it doesn't end well."""
        try:
            self._process.communicate(timeout=LONG_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        finally:
            print(self.log)
        assert self._process.returncode == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    @property
    def messages(self) -> list[dict[str, Any]]:
        """What is stored, in its order."""
        # The last line may be half-written when the process was killed; it was not confirmed then either.
        return [json.loads(line) for line in self._stored.read_text().splitlines() if line.endswith("}")]

    @property
    def ids(self) -> list[str]:
        return [message["id"] for message in self.messages]

    @property
    def bodies(self) -> list[Any]:
        return [message["body"] for message in self.messages]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def lines(self, *words: str) -> list[str]:
        """Those of the log that have all of the words."""
        return [line for line in self.log.splitlines() if all(word in line for word in words)]


def wait(condition: Callable[..., Any], what: str, seconds: float = LONG_SECONDS) -> None:
    """Wait until `condition()` holds. Raises AssertionError when time is up."""
    held = wait_until(lambda: bool(condition()), limit_seconds=seconds, every_seconds=0.05)
    assert held, f"waited {seconds:g} s for {what}"


async def main(trigger: tuple[str, dict[str, Any]], stored: str, confirm: bool) -> None:
    """Run until the standard input ends."""
    path, arguments = trigger
    module, _, name = path.rpartition(".")
    trigger_class = getattr(importlib.import_module(module), name)
    async with triggerer(store_seconds=0.02) as running:
        if not confirm:
            running.manager.confirm_persisted = lambda seqs: None  # type: ignore[method-assign]
        with open(stored, "a") as file:

            def store(watcher: Watcher, event: TriggerEvent) -> None:
                file.writelines(json.dumps(message) + "\n" for message in event.payload["messages"])
                file.flush()
                os.fsync(file.fileno())

            running.on_event = store
            running.start(trigger_class(**arguments))
            print("ready", flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    asyncio.run(main(**json.loads(sys.argv[1])))

"""A whole Airflow with several triggerers on PostgreSQL, a queue that is fed, and an account of who saw what."""

from __future__ import annotations

import json
import os
import random
import re
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from typing_extensions import Self

from services.airflow import Airflow
from services.postgres import PostgresServer
from services.sqs import SqsServer
from services.sqs_queue import SqsQueue
from tests.cohort.flow import Flow, Watcher

LONG_SECONDS = 400.0
PARSE_SECONDS = 5

HEAD = """\
from airflow.sdk import DAG, Asset, AssetWatcher

from {module} import {trigger}
"""

WATCHER = """
asset = Asset("{name}", watchers=[AssetWatcher(name="w", trigger={trigger}("{queue}", {arguments}))])
with DAG("{name}", schedule=asset, max_active_runs=1):
    pass
"""


class Result(NamedTuple):
    """What became of the messages of one scenario, all watchers together."""

    scenario: str
    watchers: int
    expected: int
    seen: int
    twice: int
    lost: int
    seconds: float


class Deployment:
    """Airflow, PostgreSQL and SQS; a context manager.

    :param folder: takes everything.
    :param triggerers: how many.
    :param env: more variables for Airflow.
    """

    def __init__(self, folder: Path, *, triggerers: int = 2, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.dags = folder / "dags"
        self.dags.mkdir(parents=True)
        self.modules = folder / "modules"
        self.modules.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.postgres = PostgresServer(folder / "postgres")
        self.sqs = SqsServer(folder / "sqs")
        self._triggerers = triggerers
        self._env = dict(env or {})
        self._keeper = threading.Thread(target=self._revive, name="revive", daemon=True)
        self._stop = threading.Event()
        self.hands_off: set[str] = set()
        """Names of components that are not started again when they end."""
        self.revived: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.postgres.start()
        self.sqs.start()
        self.airflow = Airflow(
            self.folder / "airflow",
            self.dags,
            database=self.postgres.create_database("cohort"),
            connections={"aws_default": self.sqs.connection()},
            triggerers=self._triggerers,
            parse_seconds=PARSE_SECONDS,
            env={
                "PYTHONPATH": f"{self.modules}:{os.environ.get('PYTHONPATH', '')}",
                "TMPDIR": str(self.temporary),
                **self._env,
            },
            parallelism=1,
        )
        try:
            self.airflow.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._keeper.is_alive():
            self._keeper.join()
        self.airflow.discard()
        self.sqs.stop()
        self.postgres.stop()

    def _revive(self) -> None:
        """Start again what has ended by itself, as whatever runs Airflow's components does."""
        while not self._stop.wait(0.5):
            for name, component in list(self.airflow.components.items()):
                if component.ended_by_itself and name not in self.hands_off:
                    self.revived[name] += 1
                    with suppress(RuntimeError):
                        component.start()

    def queue(self, name: str) -> SqsQueue:
        """A queue without dead letters, so that nothing can go there unnoticed."""
        return self.sqs.create_queue(name, dead_letters=False, visibility_timeout=30)

    def declare(
        self,
        name: str,
        queue: SqsQueue,
        *,
        module: str = "airflow_provider_sharedstream.triggers.sqs",
        trigger: str = "SqsSharedStreamTrigger",
        **arguments: Any,
    ) -> Watcher:
        """Write a Dag file with one watcher, or write it anew."""
        self._write(name, HEAD.format(module=module, trigger=trigger) + _watcher(name, queue, trigger, arguments))
        return Watcher(name, queue)

    def declare_all(self, file: str, queues: Mapping[str, SqsQueue]) -> list[Watcher]:
        """Write one Dag file with many watchers, a name and a queue each."""
        text = HEAD.format(module="airflow_provider_sharedstream.triggers.sqs", trigger="SqsSharedStreamTrigger")
        text += "".join(_watcher(name, queue, "SqsSharedStreamTrigger", {}) for name, queue in queues.items())
        self._write(file, text)
        return [Watcher(name, queue) for name, queue in queues.items()]

    def _write(self, name: str, text: str) -> None:
        new = self.dags / f"{name}.new"
        new.write_text(text)
        new.rename(self.dags / f"{name}.py")

    def break_file(self, name: str) -> str:
        """Make a Dag file a syntax error; return what it was."""
        text = (self.dags / f"{name}.py").read_text()
        self._write(name, text + "\nthis is no Python\n")
        return text

    def mend_file(self, name: str, text: str) -> None:
        self._write(name, text)

    def remove_file(self, name: str) -> None:
        (self.dags / f"{name}.py").unlink()

    def define(self, module: str, text: str) -> None:
        """Write a module that triggerers and Dag files can import."""
        (self.modules / f"{module}.py").write_text(textwrap.dedent(text))

    def triggers(self, *names: str) -> dict[str, tuple[int, int | None]]:
        """Asset -> its trigger and whom that one belongs to."""
        statement = (
            "SELECT asset.name, trigger.id, trigger.triggerer_id FROM trigger "
            "JOIN asset_watcher ON asset_watcher.trigger_id = trigger.id "
            "JOIN asset ON asset.id = asset_watcher.asset_id"
        )
        found = {name: (number, owner) for name, number, owner in self.query(statement)}
        return {name: found[name] for name in names if name in found} if names else found

    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """A SQL statement on the metadata database, tried again while that one is away."""
        end = time.monotonic() + LONG_SECONDS
        while True:
            try:
                return self.airflow.query(statement, **parameters)
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.5)

    def until(self, what: str, condition: Callable[..., bool], seconds: float = LONG_SECONDS) -> None:
        """Wait for a condition; raises TimeoutError that says `what`, with the ends of the triggerers' logs."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                tails = "\n".join(f"--- {name}\n{self.airflow.tail(name, 40)}" for name in self.airflow.triggerers)
                raise TimeoutError(f"no {what} after {seconds:g} s; the logs end with:\n{tails}")
            time.sleep(0.3)

    def until_listed(self, *watchers: Watcher) -> None:
        """Wait until each has a trigger."""
        names = [watcher.name for watcher in watchers]
        self.until(f"triggers of {', '.join(names)}", lambda: len(self.triggers(*names)) == len(names))

    def trigger(self, watcher: Watcher) -> int | None:
        """Its trigger's id; None while it has none."""
        return self.triggers(watcher.name).get(watcher.name, (None, None))[0]

    def until_replaced(self, watcher: Watcher, before: int | None) -> None:
        """Wait until its trigger is another one than `before`."""
        self.until(f"a new trigger of {watcher.name}", lambda: self.trigger(watcher) not in (None, before))

    def until_seen(self, flow: Flow, *watchers: Watcher) -> None:
        """Wait until each has seen a message that is sent from now on."""
        mark = flow.sent
        names = [watcher.name for watcher in watchers]

        def seen() -> bool:
            found = self.seen(*names)
            return all(any(n >= mark for n in found[name]) for name in names)

        self.until(f"new messages seen by {', '.join(names)}", seen)

    def until_caught_up(self, flow: Flow, watcher: Watcher) -> int:
        """Wait until it has seen all that was sent before now and is owed to it; return the first number after that."""
        mark = flow.sent
        owed = watcher.owed_below(flow, mark)
        self.until(f"{watcher.name} having caught up", lambda: owed <= self.seen(watcher.name)[watcher.name].keys())
        return mark

    def until_empty(self, queue: SqsQueue) -> None:
        """Wait until a queue holds nothing, hidden messages included."""
        self.until(f"an empty queue {queue.name}", lambda: queue.depth().total == 0)

    def seen(self, *names: str) -> dict[str, Counter[int]]:
        """Asset -> how often each message has been stored for it."""
        found: dict[str, Counter[int]] = {name: Counter() for name in names}
        statement = (
            "SELECT asset.name, event.extra FROM asset_event AS event JOIN asset ON asset.id = event.asset_id "
            "WHERE asset.name = ANY(:names)"
        )
        for name, extra in self.query(statement, names=list(names)):
            content = extra if isinstance(extra, dict) else json.loads(extra)
            found[name].update(message["body"]["n"] for message in content["payload"]["messages"])
        return found

    def account(self, scenario: str, flow: Flow, *watchers: Watcher, seconds: float) -> Result:
        """Wait until the queues are empty, and count."""
        for watcher in watchers:
            watcher.ends(flow, flow.sent)
        for queue in flow.queues:
            self.until_empty(queue)
        seen = self.seen(*(watcher.name for watcher in watchers))
        lost = {watcher.name: sorted(watcher.owed - seen[watcher.name].keys()) for watcher in watchers}
        for name, numbers in lost.items():
            if numbers:
                print(f"{scenario}: {name} lost {len(numbers)}: {numbers[:20]}")
        return Result(
            scenario,
            len(watchers),
            sum(len(watcher.owed) for watcher in watchers),
            sum(len(watcher.owed & seen[watcher.name].keys()) for watcher in watchers),
            sum(1 for watcher in watchers for n in watcher.owed if seen[watcher.name][n] > 1),
            sum(map(len, lost.values())),
            seconds,
        )

    def log_lines(self, pattern: str) -> list[str]:
        """Lines of the triggerers' logs that match."""
        return [
            line
            for name in self.airflow.triggerers
            for line in self.airflow.components[name].log_file.read_text(errors="replace").splitlines()
            if re.search(pattern, line)
        ]

    def rosters(self) -> list[Path]:
        """The files that triggerers write."""
        return list(self.temporary.glob("airflow-sharedstream-*/roster.json"))

    def job(self, name: str) -> int:
        """The triggerer's job."""
        return int(self.query("SELECT max(id) FROM job WHERE hostname = :name", name=name)[0][0] or 0)

    def host(self, job_id: int | None) -> str:
        """The triggerer's name."""
        return str(self.query("SELECT hostname FROM job WHERE id = :id", id=job_id)[0][0])

    def scatter(self, *watchers: Watcher) -> None:
        """Give the watchers' triggers to live triggerers at random, not all to one."""
        jobs = [self.job(name) for name in self.airflow.triggerers]
        numbers = [number for number, _ in self.triggers(*(watcher.name for watcher in watchers)).values()]
        while len(set(owners := [random.choice(jobs) for _ in numbers])) == 1:
            pass
        for number, owner in zip(numbers, owners, strict=True):
            self.query("UPDATE trigger SET triggerer_id = :owner WHERE id = :number", owner=owner, number=number)

    def restart_triggerers(self) -> None:
        for name in self.airflow.triggerers:
            self.airflow.components[name].terminate()
        for name in self.airflow.triggerers:
            self.airflow.components[name].stop()
            self.airflow.components[name].start()


def _watcher(name: str, queue: SqsQueue, trigger: str, arguments: Mapping[str, Any]) -> str:
    given = ", ".join(f"{key}={value!r}" for key, value in {"wait_time_seconds": 5, **arguments}.items())
    return WATCHER.format(name=name, queue=queue.name, trigger=trigger, arguments=given)

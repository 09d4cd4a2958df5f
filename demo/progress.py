"""What has become of what was sent, asked of Airflow and of the queues, not of the code under demonstration."""

from __future__ import annotations

import collections
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from demo.workload import Listener, Source
from services.airflow import Airflow, AssetEvent

FINAL = frozenset({"success", "failed"})


@dataclass
class DagProgress:
    """One Dag's."""

    runs: collections.Counter[str] = field(default_factory=collections.Counter)
    """Runs by state."""
    arrived: set[str] = field(default_factory=set)
    """Ids of messages that started a run which succeeded."""

    def done(self, listener: Listener) -> bool:
        settled = self.runs["success"] > 0 and not any(self.runs[state] for state in self.runs if state not in FINAL)
        return settled and (listener.expected <= self.arrived or not listener.every)


@dataclass
class SourceProgress:
    """One source's."""

    events: int = 0
    """Asset events stored."""
    waiting: int = 0
    """Messages still in the queue, hidden ones too."""
    dead: int = 0
    """Messages in the dead-letter queue."""
    seconds: float = 0.0
    """From the first look to now, or to when all was done."""


class Progress:
    """Looks again at each `look`.

    :param airflow: a running one.
    :param sources: all that was sent to.
    """

    def __init__(self, airflow: Airflow, sources: Sequence[Source]) -> None:
        self.airflow = airflow
        self.of_source = {source.name: SourceProgress() for source in sources}
        self.of_dag = {listener.dag_id: DagProgress() for source in sources for listener in source.listeners}
        self.sources = sources
        self._started = time.monotonic()
        self._done: set[str] = set()
        self._looked_into: set[tuple[str, str]] = set()

    def look(self) -> None:
        events = collections.defaultdict(list)
        for event in self.airflow.asset_events():
            events[event.asset].append(event)
        runs = self.airflow.client.dag_runs()
        for dag_id, progress in self.of_dag.items():
            own = [run for run in runs if run["dag_id"] == dag_id]
            progress.runs = collections.Counter(run["state"] for run in own)
            for run in own:
                if run["state"] == "success" and (dag_id, run["dag_run_id"]) not in self._looked_into:
                    self._looked_into.add((dag_id, run["dag_run_id"]))
                    progress.arrived |= _ids(self.airflow.asset_events((dag_id, run["dag_run_id"])))
        for source in self.sources:
            of_source = self.of_source[source.name]
            of_source.events = sum(len(events[asset]) for asset in source.assets)
            if source.queue is not None and source.queue.dead_letters is not None:
                of_source.waiting = source.queue.depth().total
                of_source.dead = source.queue.dead_letters.depth().total
            if source.name not in self._done:
                of_source.seconds = time.monotonic() - self._started
                if self.source_done(source):
                    self._done.add(source.name)
        self._done &= {source.name for source in self.sources if self.source_done(source)}

    def source_done(self, source: Source) -> bool:
        """Whether all that was sent so far is where it belongs."""
        of_source = self.of_source[source.name]
        return (
            all(self.of_dag[listener.dag_id].done(listener) for listener in source.listeners)
            and of_source.waiting == 0
            and of_source.dead == len(source.poisoned)
        )

    def done(self) -> bool:
        return all(self.source_done(source) for source in self.sources)

    def failed_runs(self) -> list[str]:
        """Ids of Dags with a failed run."""
        return [dag_id for dag_id, progress in self.of_dag.items() if progress.runs["failed"]]

    def missing(self) -> list[str]:
        """What is not as it should be, a line each."""
        lines = []
        for source in self.sources:
            of_source = self.of_source[source.name]
            for listener in source.listeners:
                progress = self.of_dag[listener.dag_id]
                absent = listener.expected - progress.arrived
                if progress.runs["failed"]:
                    lines.append(f"{listener.dag_id}: {progress.runs['failed']} runs failed")
                if listener.every and absent:
                    lines.append(
                        f"{listener.dag_id}: {len(absent)} messages are in no successful run: {sorted(absent)}"
                    )
                elif not progress.done(listener):
                    lines.append(f"{listener.dag_id}: runs {dict(progress.runs)}")
            if of_source.waiting:
                lines.append(f"{source.name}: {of_source.waiting} messages are still in the queue")
            if of_source.dead != len(source.poisoned):
                lines.append(f"{source.name}: {of_source.dead} dead letters instead of {len(source.poisoned)}")
        return lines


def _ids(events: Sequence[AssetEvent]) -> set[str]:
    """Ids of the messages in asset events; a file goes by its name."""
    found = set()
    for event in events:
        for message in (event.extra.get("payload") or {}).get("messages", ()):
            found.add(str(message["attributes"].get("name") or message["id"]))
    return found

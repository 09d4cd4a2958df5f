"""Bursts of messages on a whole Airflow: is each in a run, and when? `python -m tests.requeue.bursts --help`."""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from services.airflow import Airflow
from services.postgres import PostgresServer


class Case(NamedTuple):
    """A Dag, by its `max_active_runs` and how long a run takes."""

    max_active_runs: int
    seconds: float

    @property
    def dag_id(self) -> str:
        return f"runs_{self.max_active_runs}_seconds_{self.seconds:g}"


class Result(NamedTuple):
    """What became of one burst.

    `events`: stored; `in_runs`: of these, in a run; `again`: in more than one; `after_seconds`: from the last event's
    being stored to all being in runs.
    """

    case: Case
    burst: int
    events: int
    in_runs: int
    again: int
    runs: int
    stored_seconds: float
    after_seconds: float


CASES = tuple(itertools.starmap(Case, itertools.product((1, 4, 16), (0, 2, 10))))
TAKEN = """
SELECT run.dag_id, count(link.event_id), count(DISTINCT link.event_id), count(DISTINCT link.dag_run_id)
FROM dag_run AS run LEFT JOIN dagrun_asset_event AS link ON link.dag_run_id = run.id
WHERE run.run_type = 'asset_triggered' GROUP BY run.dag_id
"""
STORED = """
SELECT asset.name, count(*) FROM asset_event AS event JOIN asset ON asset.id = event.asset_id GROUP BY asset.name
"""


@contextmanager
def deployment(folder: Path, cases: Sequence[Case], database: str, *, requeue: bool = True) -> Iterator[Airflow]:
    """An Airflow with a Dag for each case; `requeue` off shows what Airflow does alone."""
    described = []
    for case in cases:
        directory = folder / "files" / case.dag_id
        directory.mkdir(parents=True)
        described.append({**case._asdict(), "dag_id": case.dag_id, "directory": str(directory)})
    server = PostgresServer(folder / "postgres") if database == "postgresql" else None
    if server is not None:
        server.start()
    try:
        with Airflow(
            folder / "airflow",
            Path(__file__).parent / "dags",
            database=server.create_database("bursts") if server is not None else None,
            env={
                "BURST_CASES": json.dumps(described),
                "AIRFLOW__SHAREDSTREAM__REQUEUE_STRANDED_EVENTS": str(requeue),
            },
            parallelism=8,
            parse_seconds=30,
        ) as airflow:
            yield airflow
    finally:
        if server is not None:
            server.stop()


def burst(
    airflow: Airflow, folder: Path, cases: Sequence[Case], number: int, *, limit_seconds: float = 600.0
) -> list[Result]:
    """Drop `number` files for each case at once, and wait until all events are in runs or the time is up."""
    names = [case.dag_id for case in cases]
    stored_before, taken_before = counts(airflow), taken(airflow)
    for case in cases:
        for one in range(number):
            path = folder / "files" / case.dag_id / f"{time.time_ns()}-{one}"
            path.with_name(f".{path.name}").write_text(str(one))
            path.with_name(f".{path.name}").rename(path)
    began = time.monotonic()

    def new(name: str) -> int:
        return counts(airflow).get(name, 0) - stored_before.get(name, 0)

    airflow.wait_for("all events", lambda: all(new(name) >= number for name in names), limit_seconds=limit_seconds)
    stored = time.monotonic()
    done: dict[str, float] = {}

    def complete() -> bool:
        now = taken(airflow)
        for name in names:
            if now.get(name, (0, 0, 0))[1] - taken_before.get(name, (0, 0, 0))[1] >= number:
                done.setdefault(name, time.monotonic())
        return len(done) == len(names)

    try:
        airflow.wait_for("every event in a run", complete, limit_seconds=limit_seconds)
    except TimeoutError:
        pass
    results = []
    for case in cases:
        links, distinct, runs = (
            now - before
            for now, before in zip(
                taken(airflow).get(case.dag_id, (0, 0, 0)), taken_before.get(case.dag_id, (0, 0, 0)), strict=True
            )
        )
        after = done.get(case.dag_id, float("inf")) - stored
        results.append(Result(case, number, new(case.dag_id), distinct, links - distinct, runs, stored - began, after))
    return results


def counts(airflow: Airflow) -> dict[str, int]:
    return {str(name): int(number) for name, number in airflow.query(STORED)}


def taken(airflow: Airflow) -> dict[str, tuple[int, int, int]]:
    """Dag id -> events in its runs, different ones, runs that took some."""
    return {str(row[0]): (int(row[1]), int(row[2]), int(row[3])) for row in airflow.query(TAKEN)}


def show(results: Sequence[Result]) -> None:
    for result in results:
        print(
            f"max_active_runs {result.case.max_active_runs:2}, run {result.case.seconds:2g} s, burst {result.burst:4}: "
            f"{result.in_runs}/{result.events} in {result.runs} runs, {result.again} again; stored in "
            f"{result.stored_seconds:.0f} s, all in runs {result.after_seconds:.0f} s later",
            flush=True,
        )


def cases(text: str) -> tuple[Case, ...]:
    """The cases that `1x10,16x0` stands for."""
    return tuple(
        Case(int(runs), float(seconds)) for runs, _, seconds in (one.partition("x") for one in text.split(","))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("postgresql", "sqlite"), default="postgresql")
    parser.add_argument("--bursts", default="1,60,300,1000", help="sizes, each sent to every Dag at once")
    parser.add_argument(
        "--cases",
        type=cases,
        default=CASES,
        metavar="RUNSxSECONDS,...",
        help="max_active_runs and run times: 1x10,16x0; default: 1, 4 and 16 with 0, 2 and 10 s",
    )
    parser.add_argument("--without", action="store_true", help="with requeueing switched off")
    parser.add_argument("--limit-seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bursts-"))
    with deployment(folder, arguments.cases, arguments.database, requeue=not arguments.without) as airflow:
        airflow.wait_for("all Dags", lambda: len(airflow.client.dags()) == len(arguments.cases))
        for number in map(int, arguments.bursts.split(",")):
            show(burst(airflow, folder, arguments.cases, number, limit_seconds=arguments.limit_seconds))


if __name__ == "__main__":
    main()

"""Runs the demo; ends with 0 only if all that was sent is where it belongs."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

import airflow_provider_sharedstream
from demo import workload
from demo.invitation import invite
from demo.progress import Progress
from demo.table import line, table
from demo.workload import Source
from services.airflow import Airflow
from services.sqs import CHECKOUT, SqsServer
from services.sqs_queue import SqsQueue

HOME = Path(os.environ.get("SHAREDSTREAM_DEMO_HOME", CHECKOUT / ".local" / "demo"))
EXAMPLES = ("example_sqs.py", "example_directory.py", "example_scheduling.py")
LIMIT_SECONDS = 420.0
"""For each of: Dags parsed and watched, burst stored, all done. Usually a minute together."""

# Without a terminal rich would take 80 columns.
console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 140)
started = time.monotonic()


class DemoFailed(Exception):
    """What was expected did not happen; the message explains it."""


def say(text: str) -> None:
    console.print(f"{time.monotonic() - started:6.1f} s  {text}", markup=False)


def main() -> int:
    signal.signal(signal.SIGTERM, _end)
    for earlier in ("airflow", "dags", "inbox", "sqs"):
        shutil.rmtree(HOME / earlier, ignore_errors=True)
    try:
        with SqsServer(HOME / "sqs") as sqs:
            say(f"SQS: {sqs.taken}, at {sqs.endpoint_url}")
            unique = secrets.token_hex(3)
            queues = [sqs.create_queue(f"example-{name}-{unique}") for name in ("orders", "warehouse")]
            try:
                _demonstrate(sqs, *queues)
            finally:
                for queue in queues:
                    queue.remove()
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except (DemoFailed, RuntimeError, TimeoutError) as failure:
        console.print(f"\nThe demo failed.\n{failure}", markup=False, style="red")
        return 1
    say("nothing is left running")
    return 0


def _demonstrate(sqs: SqsServer, orders: SqsQueue, warehouse: SqsQueue) -> None:
    inbox = HOME / "inbox"
    inbox.mkdir(parents=True)
    airflow = Airflow(
        HOME / "airflow",
        _dags(),
        connections={"aws_default": sqs.connection()},
        env={
            "EXAMPLE_SQS_QUEUE": orders.name,
            "EXAMPLE_SCHEDULING_QUEUE": warehouse.name,
            "EXAMPLE_DIRECTORY": str(inbox),
        },
    )
    sources = (workload.orders(orders), workload.warehouse(warehouse), workload.inbox())
    try:
        say(f"Airflow: SQLite, in {airflow.home}")
        airflow.start(say)
        say(f"UI: {airflow.url}")
        progress = Progress(airflow, sources)
        _wait_for_watchers(airflow, progress)
        _send(airflow, progress, inbox)
        _check_dead_letters(sources[0])
        say(f"all of it is where it belongs; UI: {airflow.url}")
        if os.environ.get("KEEP") == "1":
            console.print(invite(airflow, sqs, orders, inbox, HOME / "own_dags"), markup=False)
            say("Airflow stays up until Ctrl-C")
            with contextlib.suppress(KeyboardInterrupt):
                signal.pause()
    finally:
        say("stopping everything")
        airflow.discard()


def _dags() -> Path:
    """A folder with those example Dags whose sources the demo starts."""
    folder = HOME / "dags"
    folder.mkdir(parents=True)
    for name in EXAMPLES:
        (folder / name).symlink_to(Path(airflow_provider_sharedstream.__file__).with_name("example_dags") / name)
    return folder


def _wait_for_watchers(airflow: Airflow, progress: Progress) -> None:
    def watched() -> bool:
        if errors := airflow.client.import_errors():
            raise DemoFailed("\n".join(f"{file}:\n{trace}" for file, trace in errors.items()))
        running = airflow.query('SELECT count(*) FROM "trigger" WHERE triggerer_id IS NOT NULL')[0][0]
        return set(progress.of_dag) <= set(airflow.client.dags()) and running == workload.WATCHERS

    airflow.wait_for(f"{workload.WATCHERS} watchers", watched, limit_seconds=LIMIT_SECONDS)
    say(f"{len(progress.of_dag)} Dags, {workload.WATCHERS} watchers")


def _send(airflow: Airflow, progress: Progress, inbox: Path) -> None:
    orders, warehouse, directory = progress.sources
    workload.send(orders, workload.order_burst())
    workload.send(warehouse, workload.warehouse_burst())
    workload.drop(directory, inbox, workload.FILES)
    say(f"sent {orders.sent} and {warehouse.sent} messages, dropped {directory.sent} files")
    _watch(airflow, progress, "successful runs for all of it", progress.done)

    def left() -> list[str]:
        return sorted(file.name for file in inbox.iterdir())

    airflow.wait_for("end of the files that somebody got", lambda: left() == workload.NOBODYS_FILES)
    say(f"left in the inbox, since no watcher wants it: {', '.join(left())}")


def _watch(airflow: Airflow, progress: Progress, what: str, reached: Callable[[], bool]) -> None:
    """Show the table until it is reached; without a terminal, a line at each change."""
    shown = ""
    with Live(table(progress), console=console, auto_refresh=False, transient=True) as live:

        def look() -> bool:
            nonlocal shown
            progress.look()
            live.update(table(progress), refresh=console.is_terminal)
            if not console.is_terminal and (now := line(progress)) != shown:
                shown = now
                say(now)
            if failed := progress.failed_runs():
                raise DemoFailed(_log_of_failed_run(airflow, failed[0]))
            return reached()

        try:
            airflow.wait_for(what, look, limit_seconds=LIMIT_SECONDS)
        except TimeoutError as error:
            raise DemoFailed("\n".join([*progress.missing(), str(error)])) from error
    console.print(table(progress))


def _log_of_failed_run(airflow: Airflow, dag_id: str) -> str:
    run = next(run for run in airflow.client.dag_runs(dag_id) if run["state"] == "failed")
    tasks = airflow.client.task_instances(dag_id, run["dag_run_id"])
    failed = next((task for task in tasks if task["state"] == "failed"), None)
    if failed is None:
        return f"{dag_id}: {run['dag_run_id']} failed without a failed task\n{airflow.tail('scheduler')}"
    log = airflow.client.task_log(dag_id, run["dag_run_id"], failed["task_id"], failed["try_number"])
    return f"{dag_id}: {failed['task_id']} failed in {run['dag_run_id']}:\n{log}"


def _check_dead_letters(source: Source) -> None:
    """The poison, as it was sent, with the reason on it, and nothing else."""
    assert source.queue is not None
    assert source.queue.dead_letters is not None
    letters = source.queue.dead_letters.receive()
    if [json.loads(letter["Body"]) for letter in letters] != [workload.POISON]:
        raise DemoFailed(f"the dead-letter queue holds {letters}, expected the poison message alone")
    reason = letters[0].get("MessageAttributes", {}).get("x-sharedstream-reason", {}).get("StringValue")
    if not reason:
        raise DemoFailed(f"the dead letter has no reason on it: {letters[0]}")
    say(f"dead-lettered: {letters[0]['Body']} because: {reason}")


def _end(number: int, frame: FrameType | None) -> None:
    # Otherwise the program would end without its `finally`.
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

"""The live table."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from demo.progress import Progress
from demo.workload import Listener, Source

STATES = ("success", "running", "queued", "failed")


def table(progress: Progress) -> Table:
    """Each source, with its Dags under it."""
    drawn = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    drawn.add_column("source, Dags")
    for heading in ("sent", "stored events", "arrived", "runs by state", "dead-lettered", "seconds"):
        drawn.add_column(heading, justify="left" if heading == "runs by state" else "right")
    for source in progress.sources:
        of_source = progress.of_source[source.name]
        drawn.add_row(
            Text(f"{_mark(progress.source_done(source))} {source.name}", style="bold"),
            str(source.sent),
            str(of_source.events),
            "",
            "",
            f"{of_source.dead}" if source.queue is not None else "",
            f"{of_source.seconds:.0f}",
        )
        for listener in source.listeners:
            drawn.add_row(*_of_dag(progress, listener))
    return drawn


def line(progress: Progress) -> str:
    """The same in one line, for an output that can't be drawn over."""
    return "   ".join(_in_short(progress, source) for source in progress.sources)


def _of_dag(progress: Progress, listener: Listener) -> tuple[str, ...]:
    of_dag = progress.of_dag[listener.dag_id]
    arrived = f"{len(listener.expected & of_dag.arrived)}/{len(listener.expected)}" if listener.expected else ""
    runs = "  ".join(f"{state} {of_dag.runs[state]}" for state in STATES if of_dag.runs[state])
    return f"  {_mark(of_dag.done(listener))} {listener.dag_id}", "", "", arrived, runs or "none", "", ""


def _in_short(progress: Progress, source: Source) -> str:
    of_source = progress.of_source[source.name]
    runs = [progress.of_dag[listener.dag_id].runs for listener in source.listeners]
    states = ", ".join(f"{state} {total}" for state in STATES if (total := sum(run[state] for run in runs)))
    dead = f", dead-lettered {of_source.dead}" if source.queue is not None else ""
    return f"{source.name}: sent {source.sent}, events {of_source.events}, runs: {states or 'none'}{dead}"


def _mark(done: bool) -> str:
    return "✓" if done else "·"

"""Airflow's tables on PostgreSQL, a whole Airflow, and the table of what became of the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.postgres import PostgresServer
from tests.cohort.database import Tables
from tests.cohort.deployment import Deployment, Result

HEAD = ("scenario", "watchers", "expected", "seen", "twice", "lost", "seconds")


@pytest.fixture(scope="module")
def all_tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        made = Tables(server.create_database("tables"))
        yield made
        made.engine.dispose()


@pytest.fixture
def database(all_tables: Tables) -> Tables:
    """Airflow's tables, empty."""
    all_tables.clear()
    return all_tables


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[Result], Result]:
    """Puts a result into the table."""

    def put(result: Result) -> Result:
        request.node.user_properties.append(("cohort", list(result)))
        return result

    return put


def together(tmp_path_factory: pytest.TempPathFactory, **options: Any) -> Iterator[Deployment]:
    """A deployment for all tests of a module; a watcher that is absent is waited for for 20 s."""
    env = {"AIRFLOW__SHAREDSTREAM__COHORT_TIMEOUT_SECONDS": "20", **options.pop("env", {})}
    folder: Path = tmp_path_factory.mktemp("cohort")
    with Deployment(folder, env=env, **options) as deployment:
        yield deployment


def assert_said_loudly(deployment: Deployment, pattern: str) -> None:
    """A triggerer's log has such lines, all of them errors."""
    said = deployment.log_lines(pattern)
    assert said
    assert all("[error" in line for line in said)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    rows = [
        [str(cell) if not isinstance(cell, float) else f"{cell:.0f}" for cell in value]
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for key, value in report.user_properties
        if key == "cohort"
    ]
    if not rows:
        return
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    terminalreporter.section("messages, each times the watchers that had to see it")
    for row in (HEAD, *rows):
        first, *others = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        numbers = [cell.strip().rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        terminalreporter.write_line("  ".join([first, *numbers]).rstrip())

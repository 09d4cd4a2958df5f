"""A whole Airflow as processes: every component can be started, stopped and killed by name."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
import sqlalchemy

from services.airflow_client import AirflowClient
from services.airflow_settings import settings
from services.process import LocalProcess, environment, free_port, http_ok, log_tail

if TYPE_CHECKING:
    from typing_extensions import Self

COMPONENTS = ("api-server", "scheduler", "dag-processor")
"""Besides the triggerers, which are triggerer-1, triggerer-2, ..."""

AIRFLOW = (sys.executable, "-m", "airflow")


class AssetEvent(NamedTuple):
    """A stored asset event; what a trigger yielded is `extra["payload"]`."""

    id: int
    asset: str
    timestamp: str
    extra: dict[str, Any]


class Component(LocalProcess):
    """One `airflow` command, ready when it has a row of its own in the job table, or answers over HTTP."""

    def __init__(self, airflow: Airflow, name: str, *command: str, env: Mapping[str, str | None]) -> None:
        super().__init__(
            name,
            [*AIRFLOW, *command],
            log_file=airflow.home / "logs" / f"{name}.log",
            env={**env, "SHAREDSTREAM_COMPONENT": name},
            cwd=airflow.home,
            ready=self._answers if name == "api-server" else self._has_new_job,
            ready_seconds=300,
            stop_seconds=30,
        )
        self._airflow = airflow
        self._earlier_job = 0

    def launch(self) -> None:
        if self.name != "api-server":
            self._earlier_job = self._airflow.job_id(self.name)
        super().launch()

    def _has_new_job(self) -> bool:
        return self._airflow.job_id(self.name) > self._earlier_job

    def _answers(self) -> bool:
        return http_ok(f"{self._airflow.url}/api/v2/monitor/health")


class Airflow:
    """Airflow with a home of its own; the variables of this program's own Airflow do not reach it.

    The context manager starts it, and ends it by `discard`.

    :param home: AIRFLOW_HOME; made, and used as it is when it was made before.
    :param dags: folder of the Dag files.
    :param database: SQLAlchemy address of an empty or migrated PostgreSQL database; default: SQLite in `home`.
    :param connections: connection id -> JSON or URI.
    :param triggerers: how many to start.
    :param parse_seconds: how often a Dag file is looked for and parsed; Airflow's own default is 30.
    :param env: more variables; these win.
    :param parallelism: how many tasks run at once.
    :param port: the API server's; default: a free one.
    """

    def __init__(
        self,
        home: Path,
        dags: Path,
        *,
        database: str | None = None,
        connections: Mapping[str, str] | None = None,
        triggerers: int = 1,
        parse_seconds: int = 5,
        env: Mapping[str, str] | None = None,
        parallelism: int = 4,
        port: int | None = None,
    ) -> None:
        self.home = home.resolve()
        self.dags = dags.resolve()
        self.parse_seconds = parse_seconds
        self.database = database or f"sqlite:///{self.home / 'airflow.db'}"
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = AirflowClient(self.url)
        self.components: dict[str, Component] = {}
        self.migrated_in_seconds = 0.0
        self._engine = sqlalchemy.create_engine(self.database, isolation_level="AUTOCOMMIT")
        self._env = {
            **settings(
                self.home,
                self.dags,
                database=self.database,
                port=self.port,
                parse_seconds=parse_seconds,
                parallelism=parallelism,
            ),
            **{f"AIRFLOW_CONN_{name.upper()}": value for name, value in (connections or {}).items()},
            **(env or {}),
        }
        for name in COMPONENTS:
            # The log servers of scheduler and triggerer listen on every address; the API server reads the files.
            options = ("--skip-serve-logs",) if name == "scheduler" else ()
            self.components[name] = Component(self, name, name, *options, env=self._env)
        for _ in range(triggerers):
            self._next_triggerer()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.discard()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()

    @property
    def triggerers(self) -> list[str]:
        """Names of the triggerers."""
        return [name for name in self.components if name.startswith("triggerer")]

    def start(self, report: Callable[[str], None] = lambda _: None) -> None:
        """Migrate and start all side by side; raises RuntimeError with the end of the log that explains a failure.

        :param report: called with a line when something is ready.
        """
        self.migrate()
        report(f"database migrated in {self.migrated_in_seconds:.0f} s")
        for component in self.components.values():
            component.launch()
        for name, component in self.components.items():
            component.wait_ready()
            report(f"{name} up after {component.started_in_seconds:.0f} s")

    def migrate(self) -> None:
        """`airflow db migrate`; quick when there is nothing to do."""
        started = time.monotonic()
        self.run("db", "migrate")
        self.migrated_in_seconds = time.monotonic() - started

    def stop(self) -> None:
        """Stop every component in an orderly way, which takes some ten seconds; `start` starts them again."""
        for component in self.components.values():
            if component.name != "api-server":
                component.terminate()
        for component in reversed(self.components.values()):
            component.stop()

    def discard(self) -> None:
        """End every component at once, with all of its children. The home stays."""
        for component in self.components.values():
            component.kill()
        self.client.close()
        self._engine.dispose()

    def add_triggerer(self, *options: str) -> str:
        """Start one more triggerer and return its name.

        :param options: of its command line.
        """
        name = self._next_triggerer(*options)
        self.components[name].start()
        return name

    def kill(self, name: str, *, alone: bool = False) -> None:
        """KILL -9 for a component and its children; `alone`: for its supervising process only."""
        self.components[name].kill(alone=alone)

    def runner(self, name: str) -> psutil.Process:
        """The child of a triggerer that runs the triggers; raises RuntimeError while there is none."""
        children = [child for child in self.components[name].children() if child.ppid() == self.components[name].pid]
        if not children:
            raise RuntimeError(f"{name} has no runner; its log ends with:\n{self.components[name].tail()}")
        return children[0]

    def kill_runner(self, name: str) -> None:
        """KILL -9 for a triggerer's runner; Airflow then ends the supervisor too."""
        self.components[name].expect_end()
        self.runner(name).send_signal(signal.SIGKILL)

    def job_id(self, name: str) -> int:
        """Id of the component's newest row in the job table: for a triggerer, `trigger.triggerer_id`."""
        rows = self.query("SELECT max(id) FROM job WHERE hostname = :name", name=name)
        return int(rows[0][0] or 0)

    def query(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of a SQL statement on the metadata database."""
        with self._engine.connect() as connection:
            result = connection.execute(sqlalchemy.text(statement), parameters)
            return [tuple(row) for row in result] if result.returns_rows else []

    def asset_events(self, run: tuple[str, str] | None = None) -> list[AssetEvent]:
        """Stored asset events, in the order in which they were stored.

        Read from the database: the REST API answers 500 as long as a run that one of them created is queued.

        :param run: Dag id and run id: only the events that started this run. Default: all.
        """
        statement = (
            "SELECT event.id, asset.name, event.timestamp, event.extra "
            "FROM asset_event AS event JOIN asset ON asset.id = event.asset_id "
        )
        if run is not None:
            statement += (
                "JOIN dagrun_asset_event AS link ON link.event_id = event.id "
                "JOIN dag_run AS run ON run.id = link.dag_run_id "
                "WHERE run.dag_id = :dag_id AND run.run_id = :run_id "
            )
        dag_id, run_id = run or ("", "")
        rows = self.query(statement + "ORDER BY event.id", dag_id=dag_id, run_id=run_id)
        return [
            AssetEvent(number, name, str(moment), extra if isinstance(extra, dict) else json.loads(extra or "{}"))
            for number, name, moment, extra in rows
        ]

    def run(self, *arguments: str) -> str:
        """Output of an `airflow` command; raises RuntimeError with it when it fails."""
        done = subprocess.run(
            [*AIRFLOW, *arguments],
            env=environment(self._env),
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"airflow {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def write_command(self, file: Path) -> None:
        """Write a shell script that runs `airflow` commands on this Airflow."""
        unset = " ".join(f"-u {name}" for name, value in self._env.items() if value is None)
        variables = shlex.join(f"{name}={value}" for name, value in self._env.items() if value is not None)
        # There are keys in it.
        file.touch(mode=0o700)
        file.write_text(f'#!/bin/sh\nexec env {unset} {variables} {shlex.join(AIRFLOW)} "$@"\n')

    def wait_for(self, what: str, condition: Callable[[], bool], *, limit_seconds: float = 180.0) -> None:
        """Wait until the condition holds; raises TimeoutError that says `what`, with the ends of all logs.

        A component that ended meanwhile, other than by `kill`, raises RuntimeError at once.
        """

        end = time.monotonic() + limit_seconds
        while not condition():
            if (ended := self._ended()) is not None:
                raise RuntimeError(
                    f"{ended} has ended while waiting for {what}; its log ends with:\n{self.tail(ended)}"
                )
            if time.monotonic() > end:
                tails = "\n".join(f"--- {name}\n{self.tail(name, 15)}" for name in self.components)
                raise TimeoutError(f"no {what} after {limit_seconds:g} s; the logs end with:\n{tails}")
            time.sleep(0.5)

    def tail(self, name: str, lines: int = 40) -> str:
        return log_tail(self.components[name].log_file, lines)

    def _ended(self) -> str | None:
        return next((name for name, component in self.components.items() if component.ended_by_itself), None)

    def _next_triggerer(self, *options: str) -> str:
        name = f"triggerer-{len(self.triggerers) + 1}"
        self.components[name] = Component(self, name, "triggerer", "--skip-serve-logs", *options, env=self._env)
        return name

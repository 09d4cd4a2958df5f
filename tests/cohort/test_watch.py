"""The thread's loop through outages of the database, and with an Airflow whose tables are others. In a process of its
own, as in a triggerer's supervisor.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from airflow.configuration import conf
from sqlalchemy import text

from airflow_provider_sharedstream.stream.roster import Roster
from services.postgres import PostgresServer
from services.process import LocalProcess, wait_until
from tests.cohort.database import Tables

PROGRAM = """
import pathlib, sys
from airflow_provider_sharedstream.supervisor import tables
from airflow_provider_sharedstream.supervisor.watch import watch
{patch}
watch(int(sys.argv[1]), pathlib.Path(sys.argv[2]), None)
print("it has ended", flush=True)
"""

LONG_SECONDS = 120.0


class Watching:
    """The program, its roster and its log."""

    def __init__(self, folder: Path, address: str, job: int, patch: str = "") -> None:
        self.path = folder / "temporary" / "roster.json"
        self.path.parent.mkdir()
        self.log = folder / "log"
        self.process = LocalProcess(
            "watch",
            [sys.executable, "-c", PROGRAM.format(patch=patch), str(job), str(self.path)],
            log_file=self.log,
            env={
                "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": address,
                "AIRFLOW_HOME": str(folder / "home"),
                # The rows are encrypted here, with what a configuration file may hold.
                "AIRFLOW__CORE__FERNET_KEY": conf.get("core", "fernet_key"),
                "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]),
            },
        )

    def __enter__(self) -> Watching:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()

    def roster(self) -> Roster | None:
        return Roster.from_json(self.path.read_text()) if self.path.exists() else None

    def until(self, condition: Callable[[Roster], bool]) -> Roster:
        def holds() -> bool:
            roster = self.roster()
            return roster is not None and condition(roster)

        assert wait_until(holds, limit_seconds=LONG_SECONDS), f"{self.roster()}\n{self.said()}"
        roster = self.roster()
        assert roster is not None
        return roster

    def said(self) -> str:
        return self.log.read_text()


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


pytestmark = [pytest.mark.slow]


def test_it_outlives_the_database(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.create_database("watch")
    database = Tables(address)
    job = database.job()
    database.trigger(database.asset("asset"), owner=job)
    with Watching(tmp_path, address, job) as watching:
        first = watching.until(lambda roster: bool(roster.streams))
        postgres.restart()
        second = watching.until(lambda roster: roster.read_at > first.read_at + 5)
        postgres.kill()
        assert wait_until(lambda: "can't be read at present" in watching.said(), limit_seconds=LONG_SECONDS)
        at_the_end = watching.roster()
        assert at_the_end is not None
        postgres.start()
        third = watching.until(lambda roster: roster.read_at > at_the_end.read_at + 5)
        assert first.streams.keys() == second.streams.keys() == third.streams.keys()
        assert "can be read again" in watching.said()
        assert watching.process.running
        # One line when it goes, none for each attempt.
        assert watching.said().count("can't be read at present") <= 3
        assert "Traceback" not in watching.said()


@pytest.mark.parametrize(
    ("change", "patch", "said"),
    [
        ("ALTER TABLE trigger RENAME COLUMN triggerer_id TO owner_id", "", "triggerer_id"),
        ("ALTER TABLE asset_watcher RENAME TO watcher_of_asset", "", "asset_watcher"),
        ("", "tables.USED = {**tables.USED, 'airflow.models.trigger.Trigger': ('x',)}", "no x"),
        ("", "tables.USED = {**tables.USED, 'airflow.models.gone.Gone': ('x',)}", "airflow.models.gone"),
    ],
    ids=["a column", "a table", "an attribute", "a module"],
)
def test_other_tables_turn_it_off(change: str, patch: str, said: str, postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.create_database("changed")
    database = Tables(address)
    job = database.job()
    if change:
        with database.session() as session:
            session.execute(text(change))
    with Watching(tmp_path, address, job, patch) as watching:
        roster = watching.until(lambda roster: roster.off is not None)
        assert roster.off is not None
        assert said in roster.off
        assert wait_until(lambda: "it has ended" in watching.said(), limit_seconds=LONG_SECONDS)
        lines = [line for line in watching.said().splitlines() if "not kept together" in line]
        assert len(lines) == 1
        assert "Traceback" not in watching.said()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER TABLE trigger DROP COLUMN queue", "the table trigger has no column queue"),
        ("ALTER TABLE asset_watcher RENAME TO watcher_of_asset", "no table asset_watcher"),
    ],
    ids=["a column", "a table"],
)
def test_tables_that_change_under_way_turn_it_off(
    change: str, said: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    address = postgres.create_database("migrated")
    database = Tables(address)
    job = database.job()
    database.trigger(database.asset("asset"), owner=job)
    with Watching(tmp_path, address, job) as watching:
        watching.until(lambda roster: bool(roster.streams))
        with database.session() as session:
            session.execute(text(change))
        roster = watching.until(lambda roster: roster.off is not None)
        assert roster.off is not None
        assert said in roster.off
        assert wait_until(lambda: "it has ended" in watching.said(), limit_seconds=LONG_SECONDS)
        assert watching.said().count("not kept together") == 1
        assert "Traceback" not in watching.said()


def test_switched_off_it_asks_the_database_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    patch = "import os; os.environ['AIRFLOW__SHAREDSTREAM__COHORT'] = 'False'"
    with Watching(tmp_path, "postgresql+psycopg2://nobody@127.0.0.1:1/none", 7, patch) as watching:
        roster = watching.until(lambda roster: roster.off is not None)
        assert roster.off == "[sharedstream] cohort is off"
        assert wait_until(lambda: "it has ended" in watching.said(), limit_seconds=LONG_SECONDS)


def test_a_folder_that_is_tidied_away_is_made_again(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.create_database("tidied")
    with Watching(tmp_path, address, Tables(address).job()) as watching:
        first = watching.until(lambda roster: True)
        folder = watching.path.parent
        shutil.rmtree(folder)
        watching.until(lambda roster: roster.read_at > first.read_at)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert "Traceback" not in watching.said()


def test_what_nobody_has_foreseen_is_said_and_tried_again(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.create_database("surprise")
    database = Tables(address)
    job = database.job()
    patch = (
        "real = tables.read_watchers\n"
        "calls = []\n"
        "def sometimes(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) in (2, 3):\n"
        "        raise RuntimeError('a surprise')\n"
        "    return real(*arguments)\n"
        "tables.read_watchers = sometimes\n"
    )
    with Watching(tmp_path, address, job, patch) as watching:
        first = watching.until(lambda roster: True)
        watching.until(lambda roster: roster.read_at > first.read_at)
        assert watching.said().count("a surprise") >= 2
        assert watching.process.running

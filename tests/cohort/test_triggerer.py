"""Real triggerers on a real database, beside one that has everything: each takes its share of what is of its scope."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.configuration import conf
from sqlalchemy import text

from services.airflow import Airflow
from services.postgres import PostgresServer
from services.process import wait_until
from tests.cohort.database import Tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    folder = tmp_path_factory.mktemp("triggerers")
    (folder / "dags").mkdir()
    with PostgresServer(folder / "postgres") as server:
        made = Airflow(
            folder / "airflow",
            folder / "dags",
            database=server.create_database("scopes"),
            # Nothing listens there.
            connections={"aws_default": "aws://a:b@/?endpoint_url=http%3A%2F%2F127.0.0.1%3A1&region_name=us-east-1"},
            triggerers=0,
            env={
                "AIRFLOW__CORE__FERNET_KEY": conf.get("core", "fernet_key"),
                "AIRFLOW__CORE__MULTI_TEAM": "True",
                "AIRFLOW__TRIGGERER__QUEUES_ENABLED": "True",
                "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20",
                "TMPDIR": str(folder),
            },
        )
        try:
            made.migrate()
            yield made
        finally:
            made.discard()


def lines(airflow: Airflow, name: str) -> list[str]:
    found = airflow.components[name].log_file.read_text(errors="replace").splitlines()
    return [line for line in found if "airflow_provider_sharedstream.supervisor" in line]


def test_one_that_runs_none_of_ours_says_nothing(airflow: Airflow, tmp_path_factory: pytest.TempPathFactory) -> None:
    name = airflow.add_triggerer()
    folder = Path(str(airflow.components[name].env["TMPDIR"]))
    assert wait_until(lambda: bool(list(folder.glob("airflow-sharedstream-*/roster.json"))), limit_seconds=120)
    assert lines(airflow, name) == []
    airflow.components[name].stop()
    assert not list(folder.glob("airflow-sharedstream-*")), "it takes its files along"
    del airflow.components[name]


def test_each_takes_what_is_of_its_scope(airflow: Airflow) -> None:
    database = Tables(airflow.database)
    # It lives for another hour.
    rich = database.job(seconds_ago=-3600)

    def four(name: str, queue: str | None = None, team: str | None = None) -> list[int]:
        found = [
            database.trigger(database.asset(f"{name}{n}"), owner=rich, queue=queue, sqs_queue=f"{name}{n}")
            for n in range(4)
        ]
        with database.session() as session:
            session.execute(
                text("UPDATE trigger SET team_name = :team WHERE id = ANY(:ids)"), {"team": team, "ids": found}
            )
        return found

    airflow.run("teams", "create", "red")
    triggers = {"plain": four("plain"), "queue": four("queue", queue="special"), "team": four("team", team="red")}
    jobs = {
        "plain": airflow.job_id(airflow.add_triggerer()),
        "queue": airflow.job_id(airflow.add_triggerer("--queues", "special,other")),
        "team": airflow.job_id(airflow.add_triggerer("--team-name", "red")),
    }

    def owners(kind: str) -> Counter[int | None]:
        found = database.owners()
        return Counter(found[number] for number in triggers[kind])

    def shared() -> bool:
        return all(owners(kind) == {rich: 2, job: 2} for kind, job in jobs.items())

    assert wait_until(shared, limit_seconds=200), {kind: owners(kind) for kind in jobs}
    for name in airflow.triggerers:
        assert all("are moved to triggerer" in line for line in lines(airflow, name))
    database.engine.dispose()

"""What somebody has deleted on purpose doesn't come back. The requests go to Airflow's own API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from fastapi.testclient import TestClient
from sqlalchemy import select

from airflow_provider_sharedstream.supervisor.requeue import Requeue
from tests.requeue.airflow_database import AirflowDatabase, watched


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS", "True")
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "0" * 64)
        from airflow.api_fastapi.app import create_app

        yield create_app(apps="core")


@pytest.fixture
def client(app: Any, database: AirflowDatabase) -> TestClient:
    client = TestClient(app, base_url="http://127.0.0.1")
    token = client.get("/auth/token").raise_for_status().json()["access_token"]
    client.headers["Authorization"] = f"Bearer {token}"
    return client


def run_ids(database: AirflowDatabase, dag_id: str) -> list[str]:
    with database.sessions() as session:
        return list(session.scalars(select(DagRun.run_id).where(DagRun.dag_id == dag_id).order_by(DagRun.id)))


def sweeps(database: AirflowDatabase) -> int:
    requeue = Requeue()
    return sum(database.sweep(requeue) for _ in range(3))


@pytest.mark.parametrize(
    "path",
    ["/dags/d/assets/queuedEvents", "/dags/d/assets/{asset}/queuedEvents", "/assets/{asset}/queuedEvents"],
)
def test_queued_events_that_were_deleted(database: AirflowDatabase, client: TestClient, path: str) -> None:
    database.parse("d", [watched("a")])
    database.parse("e", [watched("b")])
    database.burst("a", 3)
    database.burst("b", 3)
    client.delete(f"/api/v2{path.format(asset=database.asset_id('a'))}").raise_for_status()
    assert database.queued() == {("e", database.asset_id("b"))}
    assert sweeps(database) == 0
    database.schedule()
    assert sweeps(database) == 1, "somebody else's events are given back as ever"
    assert database.runs("d") == []
    database.burst("a", 1)
    database.schedule()
    assert len(database.taken("d")) == 4, "Airflow itself takes them with the next event"


def test_events_after_a_deletion(database: AirflowDatabase, client: TestClient) -> None:
    database.parse("d", [watched("a")])
    database.burst("a", 3)
    client.delete("/api/v2/dags/d/assets/queuedEvents").raise_for_status()
    database.change("d", is_paused=True)
    database.event("a")
    database.change("d", is_paused=False)
    assert sweeps(database) == 1


def test_a_run_that_was_deleted(database: AirflowDatabase, client: TestClient) -> None:
    database.parse("d", [watched("a")])
    database.event("a")
    database.schedule()
    first = database.taken("d")
    database.event("a")
    database.schedule()
    database.finish_runs()
    client.delete(f"/api/v2/dags/d/dagRuns/{run_ids(database, 'd')[1]}").raise_for_status()
    assert database.taken("d") == first
    assert sweeps(database) == 0


def test_a_run_that_was_deleted_while_events_were_stranded(database: AirflowDatabase, client: TestClient) -> None:
    """Only the events of that run were deleted."""
    database.parse("d", [watched("a")])
    database.event("a")
    database.schedule()
    database.change("d", is_paused=True)
    missed = database.burst("a", 2)
    database.finish_runs()
    client.delete(f"/api/v2/dags/d/dagRuns/{run_ids(database, 'd')[0]}").raise_for_status()
    database.change("d", is_paused=False)
    assert sweeps(database) == 1
    database.schedule()
    assert set(missed) <= set(database.taken("d"))


def test_runs_that_were_deleted_together(database: AirflowDatabase, client: TestClient) -> None:
    database.parse("d", [watched("a")])
    for _ in range(3):
        database.event("a")
        database.schedule()
    database.finish_runs()
    kept, *others = run_ids(database, "d")
    entities = [{"dag_run_id": run_id, "dag_id": "d"} for run_id in others]
    answer = client.patch(
        "/api/v2/dags/d/dagRuns",
        json={"actions": [{"action": "delete", "entities": entities, "action_on_non_existence": "fail"}]},
    )
    answer.raise_for_status()
    assert run_ids(database, "d") == [kept], answer.text
    assert sweeps(database) == 0

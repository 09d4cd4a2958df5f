"""Each test runs on PostgreSQL, MySQL and SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from services.mysql import MysqlServer
from services.postgres import PostgresServer
from tests.requeue.airflow_database import AirflowDatabase, airflow_database

DIALECTS = ("postgresql", "mysql", "sqlite")


@pytest.fixture(scope="session", params=DIALECTS)
def whole_database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AirflowDatabase]:
    folder = tmp_path_factory.mktemp("database")
    with ExitStack() as stack:
        if request.param == "postgresql":
            address = stack.enter_context(PostgresServer(folder)).create_database("requeue")
        elif request.param == "mysql":
            address = stack.enter_context(MysqlServer(folder)).create_database("requeue")
        else:
            address = f"sqlite:///{folder / 'airflow.db'}"
        yield stack.enter_context(airflow_database(address))


@pytest.fixture
def database(whole_database: AirflowDatabase) -> Iterator[AirflowDatabase]:
    yield whole_database
    whole_database.clear()

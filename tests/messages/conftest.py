from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy

from services.postgres import PostgresServer
from tests.messages.airflow_path import Store, in_database


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A PostgreSQL that puts away an event's payload, and gives it back."""
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        engine = sqlalchemy.create_engine(server.create_database("events"))
        yield in_database(engine)
        engine.dispose()

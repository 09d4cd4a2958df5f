from __future__ import annotations

import os
from pathlib import Path

import pytest
import sqlalchemy

from services import postgres
from services.postgres import ADDRESS, PostgresServer
from services.process import ServiceUnavailable


def rows(address: str, statement: str) -> list[object]:
    engine = sqlalchemy.create_engine(address)
    with engine.begin() as connection:
        result = connection.execute(sqlalchemy.text(statement))
        found: list[object] = [row[0] for row in result] if result.returns_rows else []
    engine.dispose()
    return found


@pytest.mark.skipif(ADDRESS in os.environ, reason="a server given by address can be neither killed nor restarted")
def test_data_outlive_a_kill_and_a_restart_and_open_connections_delay_neither(tmp_path: Path) -> None:
    with PostgresServer(tmp_path) as server:
        assert server.taken.startswith(("local process: postgres", "Docker image"))
        address = server.create_database("kept")
        assert server.create_database("kept") != address
        rows(address, "CREATE TABLE t (n int)")
        rows(address, "INSERT INTO t VALUES (1)")
        engine = sqlalchemy.create_engine(address)
        with engine.connect() as idle:
            idle.execute(sqlalchemy.text("SELECT 1"))
            server.restart()
            idle.invalidate()
            assert rows(address, "SELECT n FROM t") == [1]
        engine.dispose()
        if server.taken.startswith("local process"):
            rows(address, "INSERT INTO t VALUES (2)")
            server.kill()
            with pytest.raises(sqlalchemy.exc.OperationalError):
                rows(address, "SELECT n FROM t")
            server.start()
            assert rows(address, "SELECT n FROM t ORDER BY n") == [1, 2]
    with pytest.raises(sqlalchemy.exc.OperationalError):
        rows(address, "SELECT n FROM t")


def test_where_there_is_none_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ADDRESS, raising=False)
    monkeypatch.setattr(postgres, "_programs", lambda: None)
    monkeypatch.setattr(postgres, "docker_answers", lambda: False)
    with pytest.raises(ServiceUnavailable, match="apt-get install postgresql"):
        PostgresServer(tmp_path).start()

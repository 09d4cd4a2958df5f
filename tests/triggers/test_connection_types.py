"""A connection of another type than the trigger's is named, beside whatever then fails for it."""

from __future__ import annotations

import json

import pytest

from airflow_provider_sharedstream.connections.lookup import connection_of


@pytest.mark.parametrize(("given", "warned"), [("http", True), ("kafka", False), ("generic", False)])
async def test_another_type_is_warned_of(
    given: str, warned: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SOME", json.dumps({"conn_type": given, "host": "example.com"}))
    connection = await connection_of("kafka_config_id", "some", "kafka")
    assert connection.host == "example.com"
    text = "kafka_config_id='some' is a connection of type 'http', expected 'kafka'"
    assert [record.getMessage() for record in caplog.records] == ([text] if warned else [])

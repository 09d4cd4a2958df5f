"""A connection of another source's type is named as that, before what it lacks is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from airflow_provider_sharedstream.connections.aws import aws_client
from airflow_provider_sharedstream.connections.azure import service_bus_access
from airflow_provider_sharedstream.connections.google import google_access
from airflow_provider_sharedstream.connections.http import http_access
from airflow_provider_sharedstream.connections.kafka import kafka_settings
from airflow_provider_sharedstream.stream.errors import SourceUnavailable


async def use_aws(conn_id: str) -> None:
    async with await aws_client("sqs", conn_id, "eu-west-1", endpoint_url=None, read_timeout_seconds=1.0):
        pass


USES: dict[str, tuple[str, Callable[[str], Awaitable[Any]]]] = {
    "aws": ("aws_conn_id", use_aws),
    "azure_service_bus": ("azure_service_bus_conn_id", service_bus_access),
    "google_cloud_platform": ("gcp_conn_id", lambda conn_id: google_access(conn_id, needs_credentials=False)),
    "http": ("http_conn_id", http_access),
    "kafka": ("kafka_config_id", kafka_settings),
}
"""By the type that each expects: the argument that names the connection, and what looks it up."""


async def said_of(conn_type: str, use: Callable[[str], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", json.dumps({"conn_type": conn_type}))
    # What it lacks for another source is another line.
    with contextlib.suppress(SourceUnavailable):
        await use("mine")


@pytest.mark.parametrize("expected", USES)
async def test_another_type_is_said(
    expected: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    argument, use = USES[expected]
    other = "ftp" if expected == "http" else "http"
    await said_of(other, use, monkeypatch)
    assert [record.getMessage() for record in caplog.records if "is a connection of type" in record.getMessage()] == [
        f"{argument}='mine' is a connection of type {other!r}, expected {expected!r}"
    ]


@pytest.mark.parametrize("expected", USES)
@pytest.mark.parametrize("own", [True, False])
async def test_its_own_type_and_a_generic_one_are_not_complained_about(
    expected: str, own: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await said_of(expected if own else "generic", USES[expected][1], monkeypatch)
    assert "is a connection of type" not in caplog.text

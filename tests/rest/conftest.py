"""An HTTP server, and Airflow's asset state store in memory."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import (
    AssetStateStoreResult,
    ErrorResponse,
    GetAssetStateStoreByName,
    OKResponse,
    SetAssetStateStoreByName,
)
from airflow.sdk.execution_time.context import AssetStateStoreAccessors

from airflow_provider_sharedstream.triggers.rest import RestPollTrigger
from services.rest import Request, RestServer
from tests.airflow_loop import Triggerer, Watcher

NUMBERS = itertools.count()
ITEMS: dict[str, Any] = {"items_path": "items", "id_path": "id"}
"""The arguments for what `RestList` serves."""


class Supervisor:
    """The triggerer's supervisor, as far as it keeps the state of assets: Airflow's own accessor talks to it."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        """Asset -> key -> value."""
        self.reads = 0
        self.writes = 0
        self.largest = 0
        """Characters of the largest value written."""
        self.away = False
        self.gone: set[str] = set()
        """Assets that no Dag declares any more."""
        self.seconds = 0.0
        """What a call takes; there is one at a time."""
        self._lock = asyncio.Lock()

    async def asend(self, message: Any) -> Any:
        async with self._lock:
            if self.seconds:
                await asyncio.sleep(self.seconds)
            if self.away:
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 500}))
            if isinstance(message, GetAssetStateStoreByName):
                self.reads += 1
                found = self.values.get(message.name, {}).get(message.key)
                if found is None or message.name in self.gone:
                    return ErrorResponse(error=ErrorType.ASSET_STORE_NOT_FOUND)
                return AssetStateStoreResult(value=copy.deepcopy(found))
            assert isinstance(message, SetAssetStateStoreByName), message
            if message.name in self.gone:
                raise AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR, detail={"status_code": 404}))
            self.writes += 1
            self.largest = max(self.largest, len(str(message.value)))
            self.values.setdefault(message.name, {})[message.key] = copy.deepcopy(message.value)
            return OKResponse(ok=True)


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    made = Supervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", made, raising=False)
    return made


@pytest.fixture(scope="session")
def server() -> Iterator[RestServer]:
    with RestServer() as running:
        yield running


@pytest.fixture
def path() -> str:
    """One that no other test uses."""
    return f"/path-{next(NUMBERS)}"


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.3")


def watch(running: Triggerer, endpoint: str, *assets: str, **arguments: Any) -> Watcher:
    """Start a watcher for `assets`; without a connection, and soon asking again. One that fails is started again."""
    defaults: dict[str, Any] = {"http_conn_id": None, "poll_interval": 0.2, "batch_window_seconds": 0.05}
    trigger = RestPollTrigger(endpoint, **{**defaults, **arguments})
    # What the triggerer does before it runs one.
    trigger.asset_state_store = AssetStateStoreAccessors(inlets=[Asset(name=name) for name in assets])
    return running.start(trigger, restart=True)


def numbered(count: int, start: int = 0) -> list[dict[str, int]]:
    return [{"id": number} for number in range(start, start + count)]


def numbers(bodies: list[Any]) -> list[int]:
    return [body["id"] for body in bodies]


def connection(monkeypatch: pytest.MonkeyPatch, **fields: Any) -> str:
    """The id of a connection."""
    monkeypatch.setenv("AIRFLOW_CONN_REST_TEST", json.dumps({"conn_type": "http", **fields}))
    return "rest_test"


def last(server: RestServer, path: str) -> Request:
    return [request for request in server.requests if request.path == path][-1]

"""What is secret in a connection is in the requests to the endpoint's own host, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.rest.adapter import RestConsumer
from services.rest import Response, RestServer, in_turn
from tests.airflow_loop import triggerer, until
from tests.rest.conftest import ITEMS, Supervisor, connection, last, watch

SECRET = "s3cr3t-of-the-test"
EXTRA: dict[str, Any] = {"bearer_token": SECRET, "X-Api-Key": SECRET, "params": {"api_key": SECRET}}


async def test_secrets_are_nowhere_but_in_the_request(
    server: RestServer, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    conn_id = connection(monkeypatch, host=server.url, login="me", password=SECRET, extra=json.dumps(EXTRA))
    with caplog.at_level(logging.DEBUG):
        for answer in (
            Response(b'[{"id": 1}]'),
            Response(status=401),
            Response(status=500),
            Response(b"<html>"),
            Response(status=302, headers={"Location": f"/?api_key={SECRET}"}),
            Response(b"[1]", headers={"Link": f'<{path}?api_key={SECRET}&a=1>; rel="next"'}),
        ):
            server.serve(path, answer)
            consumer = RestConsumer(path, conn_id, items_path="@", poll_interval=0.1)
            try:
                await consumer.connect()
                for delivery in await consumer.receive(10):
                    assert SECRET not in str([delivery.id, delivery.body, delivery.headers, delivery.attributes])
                await asyncio.sleep(0.1)
                await consumer.receive(10)
            except Exception as error:
                caplog.records.append(logging.LogRecord("x", 10, "x", 1, repr(error), None, None))
            finally:
                await consumer.close()
            assert SECRET not in consumer.stream + consumer.identity + str(vars(consumer.poller))
    assert last(server, path).query["api_key"] == [SECRET]
    assert not [record for record in caplog.records if SECRET in record.getMessage()]


async def test_a_watcher_s_key_log_payload_and_position_hold_none(
    server: RestServer,
    path: str,
    supervisor: Supervisor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    conn_id = connection(monkeypatch, host=server.url, extra=json.dumps(EXTRA))
    page = Response(b'{"items": [{"id": 1}]}', headers={"Link": f'<{path}?api_key={SECRET}&at=1>; rel="next"'})
    wait = Response(status=429, headers={"Retry-After": "1"})
    server.serve(path, in_turn(Response(status=500), wait, page, Response(b'{"items": [{"id": 2}]}')))
    with caplog.at_level(logging.DEBUG):
        async with triggerer() as running:
            watcher = watch(running, path, "asset", http_conn_id=conn_id, **ITEMS)
            await until(lambda: len(watcher.ids) == 2, "two items")
    request = last(server, path)
    assert request.query["api_key"] == [SECRET]
    assert (request.headers["authorization"], request.headers["x-api-key"]) == (f"Bearer {SECRET}", SECRET)
    assert SECRET not in str([event.payload for event in watcher.events])
    assert SECRET not in str([watcher.trigger.shared_stream_key(), watcher.trigger.serialize()])
    assert SECRET not in str(supervisor.values)
    assert any(record.name.startswith("httpcore") for record in caplog.records), "the most talkative is heard"
    assert SECRET not in caplog.text

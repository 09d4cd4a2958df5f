"""Avro and JSON Schema, written by Confluent's serializers, through a real registry."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.receipts import Receipt
from services.process import free_port
from tests.messages.registry_server import RegistryServer

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order", "type": "long"},
        {"name": "region", "type": ["null", "string"], "default": None},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "raw", "type": {"type": "array", "items": "bytes"}},
    ],
}
WRITTEN = {
    "order": 7,
    "region": "eu",
    "amount": Decimal("120.50"),
    "placed": datetime(2026, 1, 31, 12, tzinfo=timezone.utc),
    "raw": [b"\xff\x00"],
}
SEEN = {"order": 7, "region": "eu", "amount": "120.50", "placed": "2026-01-31T12:00:00+00:00", "raw": ["/wA="]}
JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"order": {"type": "integer"}},
    "required": ["order"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def connected(server: RegistryServer, monkeypatch: pytest.MonkeyPatch) -> RegistryServer:
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", server.url)
    return server


class Written:
    """Bodies as Confluent's serializers write them."""

    def __init__(self, url: str) -> None:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.schema_registry.json_schema import JSONSerializer

        client = SchemaRegistryClient({"url": url})
        by_topic = {"subject.name.strategy.type": "TOPIC"}
        self._avro = AvroSerializer(client, json.dumps(ORDER), conf=by_topic)
        self._json = JSONSerializer(json.dumps(JSON_ORDER), client, conf=by_topic)

    def avro(self, value: Any) -> bytes:
        return self._write(self._avro, value, "orders")

    def json(self, value: Any) -> bytes:
        return self._write(self._json, value, "json-orders")

    @staticmethod
    def _write(serializer: Any, value: Any, topic: str) -> bytes:
        from confluent_kafka.serialization import MessageField, SerializationContext

        body: bytes = serializer(value, SerializationContext(topic, MessageField.VALUE))
        return body


@pytest.fixture
def written(server: RegistryServer) -> Written:
    return Written(server.url)


class Watched:
    def __init__(self, *bodies: bytes | None, **arguments: Any) -> None:
        self.deliveries = [Delivery(id=f"d-{number}", body=body) for number, body in enumerate(bodies)]
        self.decode = arguments.get("decode", "schema_registry")
        self.match = arguments.get("match")
        self.on_error = arguments.get("on_error", "reject")

    async def look(self) -> tuple[list[Any], Receipt]:
        receipt = Receipt(Batch(self.deliveries), "watcher")
        pipeline = MessagePipeline(
            Decoder(self.decode),
            Matcher(self.match),
            on_error=self.on_error,
        )
        pipeline.validate()
        return [message.body for message in await pipeline.messages_for(self.deliveries, receipt)], receipt


async def test_avro_and_json_schema_in_one_batch(connected: RegistryServer, written: Written) -> None:
    watched = Watched(written.avro(WRITTEN), written.json({"order": 8}), None)
    bodies, receipt = await watched.look()
    assert bodies == [SEEN, {"order": 8}, None]
    assert receipt.matched_all
    raw: list[Any] = [delivery.body for delivery in watched.deliveries]
    bodies, _ = await Watched(*raw, match="body.region == 'eu'").look()
    assert bodies == [SEEN]


async def test_what_is_not_in_the_format_or_does_not_fit_is_the_message_s_fault(
    connected: RegistryServer, written: Written
) -> None:
    avro, as_json = written.avro(WRITTEN), written.json({"order": 8})
    missing = b"\x00\x00\x0f\xff\xff" + avro[5:]
    broken = as_json.replace(b'"order"', b'"ordre"')
    watched = Watched(b'{"order": 7}', b"", avro[:9], missing, broken, avro)
    bodies, receipt = await watched.look()
    assert bodies == [SEEN]
    reasons = [receipt.rejected[delivery] for delivery in watched.deliveries[:5]]
    assert reasons[0] == reasons[1] == "the body isn't in a schema registry's format: it begins with no schema number"
    assert "doesn't fit schema" in reasons[2]
    assert reasons[3] == "the schema registry has no schema 1048575"
    assert "doesn't fit schema" in reasons[4]
    assert "'order' is a required property" in reasons[4]
    _, receipt = await Watched(b"x", on_error="release").look()
    assert [delivery.id for delivery in receipt.failed] == ["d-0"]


async def test_twenty_watchers_ask_once(
    connected: RegistryServer, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    from confluent_kafka.schema_registry.avro import AsyncAvroDeserializer

    calls: Counter[str] = Counter()
    real = AsyncAvroDeserializer.__call__

    def counted(self: Any, *arguments: Any) -> Any:
        calls["avro"] += 1
        return real(self, *arguments)

    monkeypatch.setattr(AsyncAvroDeserializer, "__call__", counted)
    watched = Watched(*[written.avro(WRITTEN)] * 10)
    looks = await asyncio.gather(*(watched.look() for _ in range(20)))
    assert [bodies for bodies, _ in looks] == [[SEEN] * 10] * 20
    assert calls["avro"] == 10


async def test_a_registry_that_is_away_releases_and_works_again(
    connected: RegistryServer, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {"conn_type": "http", "host": "127.0.0.1", "port": free_port(), "extra": {"max.retries": 0}}
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY_OF_OURS", json.dumps(away))
    watched = Watched(written.avro(WRITTEN), decode="schema_registry:registry_of_ours")
    with capture_logs() as logs:
        bodies, receipt = await watched.look()
    assert bodies == []
    assert receipt.rejected == {}
    assert [delivery.id for delivery in receipt.failed] == ["d-0"]
    assert "the schema registry of connection 'registry_of_ours' can't be used" in logs[0]["error"]
    assert not logs[0].get("exc_info")
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY_OF_OURS", connected.url)
    bodies, _ = await watched.look()
    assert bodies == [SEEN]


@pytest.mark.parametrize(
    "connection",
    ["", '{"conn_type": "http"}', '{"conn_type": "http", "host": "h", "extra": {"no.such.option": 1}}'],
    ids=["none", "no host", "an unknown option"],
)
async def test_a_connection_that_cannot_be_used_releases(
    connection: str, written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    if connection:
        monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", connection)
    bodies, receipt = await Watched(written.avro(WRITTEN)).look()
    assert (bodies, receipt.rejected, len(receipt.failed)) == ([], {}, 1)


def test_decoding_before_preparing_is_a_mistake_of_ours_and_rejects_nothing() -> None:
    decoder = Decoder("schema_registry")
    assert decoder.needs_preparation
    with pytest.raises(RuntimeError, match="decodes in prepare"):
        decoder.messages_of(Delivery(id="d", body=b"\x00\x00\x00\x00\x01x"))


def test_the_log_of_the_server_is_kept(server: RegistryServer) -> None:
    assert Path(server.log_file).stat().st_size > 0

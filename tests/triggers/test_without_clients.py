"""A triggerer without a broker's client says which extra to install."""

from __future__ import annotations

import json
import sys

import pytest

from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from tests.triggers.classes import CLASSES, SMALLEST, Trigger

CLIENTS = {
    "KafkaSharedStreamTrigger": (("aiokafka",), "kafka"),
    "PubSubSharedStreamTrigger": (("google.pubsub_v1", "google.auth"), "pubsub"),
    "RestPollTrigger": (("httpx",), "rest"),
    "ServiceBusSharedStreamTrigger": (("azure",), "servicebus"),
    "SqsSharedStreamTrigger": (("aioboto3", "aiobotocore", "boto3", "botocore"), "sqs"),
}
"""What is not installed, and the extra that brings it. A directory needs none."""

CONNECTIONS = {
    "KAFKA_DEFAULT": {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1"}},
    "AZURE_SERVICE_BUS_DEFAULT": {
        "conn_type": "azure_service_bus",
        "schema": "Endpoint=sb://x.example/;SharedAccessKeyName=n;SharedAccessKey=a2V5",
    },
}


@pytest.mark.parametrize("trigger_class", [one for one in CLASSES if one.__name__ in CLIENTS])
async def test_the_extra_is_named(trigger_class: Trigger, monkeypatch: pytest.MonkeyPatch) -> None:
    clients, extra = CLIENTS[trigger_class.__name__]
    for name in [*sys.modules, *clients]:
        if any(name == client or name.startswith(f"{client}.") for client in clients):
            monkeypatch.setitem(sys.modules, name, None)
    for name, connection in CONNECTIONS.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))
    producer = trigger_class.create_shared_stream_producer(SMALLEST[trigger_class.__name__])
    assert isinstance(producer, BrokerStreamProducer)
    try:
        with pytest.raises(
            SourceUnavailable, match=rf"is not installed \(.*\); install airflow-provider-sharedstream\[{extra}\]"
        ) as caught:
            await producer.consumer.connect()
        assert not producer.consumer.is_transient(caught.value)
    finally:
        await producer.aclose()

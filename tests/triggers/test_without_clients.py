"""A triggerer without a broker's client says in one line which extra to install, and goes on trying."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from tests.triggers.classes import CLASSES, SMALLEST

LIMIT_SECONDS = 180


class Lack(NamedTuple):
    """A trigger and what is not installed where it runs."""

    trigger: str
    hidden: tuple[str, ...]
    says: str
    arguments: dict[str, Any] = {}
    kafka: dict[str, str] = {}
    """Goes on top of the Kafka connection's extra."""


def tokens_of(bootstrap: str) -> dict[str, str]:
    return {"bootstrap.servers": bootstrap, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}


LACKS = {
    "sqs": Lack(
        "SqsSharedStreamTrigger",
        ("aioboto3", "aiobotocore", "boto3", "botocore"),
        r"the AWS client is not installed \(.*\); install airflow-provider-sharedstream\[sqs\]",
    ),
    "kafka": Lack(
        "KafkaSharedStreamTrigger",
        ("aiokafka",),
        r"the Kafka client is not installed \(.*\); install airflow-provider-sharedstream\[kafka\]",
    ),
    "kafka-google": Lack(
        "KafkaSharedStreamTrigger",
        ("google.auth",),
        r"Google Managed Kafka needs .*: install airflow-provider-sharedstream\[kafka-google\]",
        kafka=tokens_of("bootstrap.c.europe-west1.managedkafka.p.cloud.goog:9092"),
    ),
    "kafka-msk": Lack(
        "KafkaSharedStreamTrigger",
        ("aws_msk_iam_sasl_signer",),
        r"Amazon MSK needs a signer: install airflow-provider-sharedstream\[kafka-msk\]",
        kafka=tokens_of("b-1.n.abcde1.c2.kafka.eu-west-1.amazonaws.com:9098"),
    ),
    "schema-registry": Lack(
        "KafkaSharedStreamTrigger",
        ("confluent_kafka",),
        r"needs Confluent's client: pip install 'airflow-provider-sharedstream\[schema-registry\]'",
        arguments={"decode": "schema_registry"},
    ),
    "pubsub": Lack(
        "PubSubSharedStreamTrigger",
        ("google.pubsub_v1", "google.auth"),
        r"the Pub/Sub client is not installed \(.*\); install airflow-provider-sharedstream\[pubsub\]",
    ),
    "rest": Lack(
        "RestPollTrigger",
        ("httpx",),
        r"the HTTP client is not installed \(.*\); install airflow-provider-sharedstream\[rest\]",
        # Airflow itself looks connections up with httpx.
        arguments={"http_conn_id": None},
    ),
    "servicebus": Lack(
        "ServiceBusSharedStreamTrigger",
        ("azure",),
        r"the Service Bus client is not installed \(.*\); install airflow-provider-sharedstream\[servicebus\]",
    ),
}
"""By the extra that brings what is hidden."""

CONNECTIONS = {
    "AZURE_SERVICE_BUS_DEFAULT": {
        "conn_type": "azure_service_bus",
        "schema": "Endpoint=sb://x.example/;SharedAccessKeyName=n;SharedAccessKey=a2V5",
    },
}


def test_every_trigger_that_needs_a_client_is_here() -> None:
    assert {one.__name__ for one in CLASSES} - {"DirectoryFileDeleteTrigger"} == {one.trigger for one in LACKS.values()}


@pytest.mark.parametrize("extra", LACKS)
def test_one_line_names_the_extra(extra: str) -> None:
    lack = LACKS[extra]
    trigger = next(one for one in CLASSES if one.__name__ == lack.trigger)
    kafka = {"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:1", **lack.kafka}}
    connections = {**CONNECTIONS, "KAFKA_DEFAULT": kafka}
    arguments = {**SMALLEST[lack.trigger], **lack.arguments}
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "tests.triggers.without_client", f"{trigger.__module__}.{lack.trigger}"),
            *(json.dumps(arguments), *lack.hidden),
        ],
        env={**os.environ, **{f"AIRFLOW_CONN_{name}": json.dumps(one) for name, one in connections.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert "Traceback" not in ended.stdout
    (line,) = [line for line in ended.stdout.splitlines() if line.startswith(("ERROR:", "CRITICAL:"))]
    assert re.search(lack.says, line), line
    assert re.search(r"can't be used, next try in \d+ s: |is held, no message is taken for its watcher: ", line), line

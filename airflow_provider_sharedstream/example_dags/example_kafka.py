"""One Kafka topic, three Dags: each gets the records that it matches, as one member of one consumer group.

The topic holds JSON such as ``{"kind": "order", "region": "eu", "total": 12.5}``; the connection ``kafka_default`` says
in its extra where the brokers are. What :func:`check_order` rejects goes to a second topic, with the reason.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import Message, RejectMessage, messages
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger

log = logging.getLogger(__name__)

# What names and reaches the source is written once: watchers that agree in it share a stream.
STREAM: dict[str, Any] = {
    "topics": [os.environ.get("EXAMPLE_KAFKA_TOPIC", "example-orders")],
    "group_id": "example-airflow",
    "dead_letter_topic": os.environ.get("EXAMPLE_KAFKA_DEAD_LETTER_TOPIC", "example-orders-rejected"),
    "auto_offset_reset": "earliest",
}


def check_order(message: Message) -> dict[str, Any]:
    """Return the order with its place in the topic; reject one whose total is no number.

    A trigger names this function by its path, so that it is imported where it runs: in the triggerer.
    """
    if message.body is None:
        raise RejectMessage("an order has a body; this is a tombstone")
    if not isinstance(message.body.get("total"), (int, float)):
        raise RejectMessage(f"the total of an order is a number, not {message.body.get('total')!r}")
    place = message.attributes
    return {**message.body, "place": f"{place['topic']}[{place['partition']}]@{place['offset']}"}


@task
def report(triggering_asset_events: Any = None) -> list[str]:
    """Log what started this run, and return the ids. A run may have several messages."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s, key %s: %s", message.id, message.key, message.body)
    return [message.id for message in received]


europe = Asset(
    "example_kafka_europe",
    watchers=[
        AssetWatcher(
            name="europe",
            trigger=KafkaSharedStreamTrigger(**STREAM, match="body.region == 'eu'"),
        )
    ],
)
by_header = Asset(
    "example_kafka_by_header",
    watchers=[
        AssetWatcher(
            name="by_header",
            trigger=KafkaSharedStreamTrigger(**STREAM, match={"headers.source": ["shop", "app"]}),
        )
    ],
)
checked_orders = Asset(
    "example_kafka_checked_orders",
    watchers=[
        AssetWatcher(
            name="checked_orders",
            trigger=KafkaSharedStreamTrigger(
                **STREAM,
                match={"body.kind": "order"},
                apply_function="airflow_provider_sharedstream.example_dags.example_kafka.check_order",
            ),
        )
    ],
)

for asset in (europe, by_header, checked_orders):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "kafka"]):
        report()

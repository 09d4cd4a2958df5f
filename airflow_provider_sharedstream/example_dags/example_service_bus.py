"""A Service Bus queue with sessions and its dead letters, and a Dag for each kind of message.

Messages of one customer have the customer's number as their session id, and so arrive in order; eight customers are
served at once. What :func:`check_order` rejects goes to the queue's dead-letter queue, which another Dag watches.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import Message, RejectMessage, messages
from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger

log = logging.getLogger(__name__)

QUEUE = os.environ.get("EXAMPLE_SERVICE_BUS_QUEUE", "example-orders")


def check_order(message: Message) -> dict[str, Any]:
    """Return the order; reject one without items.

    A trigger names this function by its path, so that it is imported where it runs: in the triggerer.
    """
    if not message.body.get("items"):
        raise RejectMessage("an order has items")
    return {**message.body, "customer": message.key}


@task
def report(triggering_asset_events: Any = None) -> list[str]:
    """Log what started this run, and return the ids. A run may have several messages."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s of %s: %s", message.id, message.published_at, message.body)
    return [message.id for message in received]


@task
def explain(triggering_asset_events: Any = None) -> list[str]:
    """Log why messages were rejected, and return the reasons."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s: %s", message.attributes["dead_letter_reason"], message.body)
    return [message.attributes["dead_letter_reason"] for message in received]


orders = Asset(
    "example_service_bus_orders",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=ServiceBusSharedStreamTrigger(
                QUEUE,
                session_enabled=True,
                match={"attributes.subject": "order"},
                apply_function="airflow_provider_sharedstream.example_dags.example_service_bus.check_order",
            ),
        )
    ],
)
refunds = Asset(
    "example_service_bus_refunds",
    watchers=[
        AssetWatcher(
            name="refunds",
            trigger=ServiceBusSharedStreamTrigger(QUEUE, session_enabled=True, match={"attributes.subject": "refund"}),
        )
    ],
)
refused = Asset(
    "example_service_bus_refused",
    watchers=[
        AssetWatcher(name="refused", trigger=ServiceBusSharedStreamTrigger(QUEUE, sub_queue="deadletter")),
    ],
)

for asset, work in ((orders, report), (refunds, report), (refused, explain)):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "service_bus"]):
        work()

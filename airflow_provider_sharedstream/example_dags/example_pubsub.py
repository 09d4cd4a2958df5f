"""A Pub/Sub subscription with three watchers, and its dead letters with one more.

Publishers set the attribute ``kind``. What :func:`check_order` rejects goes to a topic of its own, with the reason in
its attributes; a subscription to that topic starts a Dag that shows it.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import Message, RejectMessage, messages
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger

log = logging.getLogger(__name__)

# None: the connection's project.
PROJECT = os.environ.get("EXAMPLE_PUBSUB_PROJECT")
SUBSCRIPTION = os.environ.get("EXAMPLE_PUBSUB_SUBSCRIPTION", "example-orders")
REFUSED = f"{SUBSCRIPTION}-refused"
"""Both the topic and a subscription to it."""

SHARED: dict[str, Any] = {"project_id": PROJECT, "subscription": SUBSCRIPTION, "dead_letter_topic": REFUSED}


def check_order(message: Message) -> dict[str, Any]:
    """Return the order with its total in cents; reject one whose total is no number.

    A trigger names this function by its path, so that it is imported where it runs: in the triggerer.
    """
    total = message.body.get("total")
    if not isinstance(total, (int, float)):
        raise RejectMessage(f"the total of an order is a number, not {total!r}")
    return {**message.body, "cents": round(total * 100)}


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
        log.info("%s: %s", message.headers["x-sharedstream-reason"], message.body)
    return [message.headers["x-sharedstream-reason"] for message in received]


orders = Asset(
    "example_pubsub_orders",
    watchers=[
        AssetWatcher(
            name="orders",
            trigger=PubSubSharedStreamTrigger(
                **SHARED,
                match={"headers.kind": "order"},
                apply_function="airflow_provider_sharedstream.example_dags.example_pubsub.check_order",
            ),
        )
    ],
)
refunds = Asset(
    "example_pubsub_refunds",
    watchers=[
        AssetWatcher(name="refunds", trigger=PubSubSharedStreamTrigger(**SHARED, match={"headers.kind": "refund"}))
    ],
)
large_in_europe = Asset(
    "example_pubsub_large_in_europe",
    watchers=[
        AssetWatcher(
            name="large_in_europe",
            trigger=PubSubSharedStreamTrigger(**SHARED, match="body.region == 'eu' && body.total > `1000`"),
        )
    ],
)
refused = Asset(
    "example_pubsub_refused",
    watchers=[AssetWatcher(name="refused", trigger=PubSubSharedStreamTrigger(PROJECT, REFUSED))],
)

for asset, work in ((orders, report), (refunds, report), (large_in_europe, report), (refused, explain)):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "pubsub"]):
        work()

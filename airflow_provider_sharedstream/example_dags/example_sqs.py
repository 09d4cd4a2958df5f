"""One SQS queue, four Dags: each gets the messages that it matches, over one connection.

The queue holds JSON such as ``{"kind": "order", "region": "eu", "total": 12.5}``. It needs a redrive policy, or the
triggers a ``dead_letter_queue``: that is where :func:`check_order` sends what it rejects.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import Message, RejectMessage, messages
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

log = logging.getLogger(__name__)

QUEUE = os.environ.get("EXAMPLE_SQS_QUEUE", "example-orders")


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


# Watchers whose triggers agree in everything but `match`, `apply_function`, `decode` and `on_error` share a stream.
orders = Asset(
    "example_sqs_orders",
    watchers=[AssetWatcher(name="orders", trigger=SqsSharedStreamTrigger(QUEUE, match={"body.kind": "order"}))],
)
refunds = Asset(
    "example_sqs_refunds",
    watchers=[AssetWatcher(name="refunds", trigger=SqsSharedStreamTrigger(QUEUE, match={"body.kind": "refund"}))],
)
large_in_europe = Asset(
    "example_sqs_large_in_europe",
    watchers=[
        AssetWatcher(
            name="large_in_europe",
            trigger=SqsSharedStreamTrigger(QUEUE, match="body.region == 'eu' && body.total > `1000`"),
        )
    ],
)
checked_orders = Asset(
    "example_sqs_checked_orders",
    watchers=[
        AssetWatcher(
            name="checked_orders",
            trigger=SqsSharedStreamTrigger(
                QUEUE,
                match={"body.kind": "order"},
                apply_function="airflow_provider_sharedstream.example_dags.example_sqs.check_order",
            ),
        )
    ],
)

for asset in (orders, refunds, large_in_europe, checked_orders):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "sqs"]):
        report()

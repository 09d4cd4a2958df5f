"""Airflow's own ways to schedule on assets, with assets that messages update.

The queue holds JSON such as ``{"kind": "delivery", "item": "bolt"}`` and ``{"kind": "invoice", "item": "bolt"}``.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetOrTimeSchedule, AssetWatcher, CronTriggerTimetable, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

log = logging.getLogger(__name__)

QUEUE = os.environ.get("EXAMPLE_SCHEDULING_QUEUE", "example-warehouse")
TAGS = ["example", "sharedstream", "scheduling"]

deliveries = Asset(
    "example_scheduling_deliveries",
    watchers=[AssetWatcher(name="deliveries", trigger=SqsSharedStreamTrigger(QUEUE, match={"body.kind": "delivery"}))],
)
invoices = Asset(
    "example_scheduling_invoices",
    watchers=[AssetWatcher(name="invoices", trigger=SqsSharedStreamTrigger(QUEUE, match={"body.kind": "invoice"}))],
)
stock = Asset("example_scheduling_stock")


@task
def report(triggering_asset_events: Any = None) -> list[str]:
    """Log what started this run, and return the ids; a run that the clock started has no messages."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s: %s", message.id, message.body)
    return [message.id for message in received]


@task(outlets=[stock])
def take_into_stock(triggering_asset_events: Any = None) -> list[str]:
    """Count what was delivered; its end updates `stock`."""
    received = messages(triggering_asset_events, asset=deliveries)
    log.info("%s deliveries: %s", len(received), [message.body["item"] for message in received])
    return [message.id for message in received]


@task
def count_stock(triggering_asset_events: Any = None) -> int:
    """Started by a task's outlet: there are events, and no messages of a broker among them."""
    assert messages(triggering_asset_events) == []
    updates = list(triggering_asset_events[stock])
    log.info("%s updates of the stock", len(updates))
    return len(updates)


# Started by either.
with DAG("example_scheduling_either", schedule=deliveries | invoices, tags=TAGS):
    report()

# Started when each has come at least once since the last run.
with DAG("example_scheduling_both", schedule=deliveries & invoices, tags=TAGS):
    report()

# Started by a message, and at six in the morning in any case.
with DAG(
    "example_scheduling_or_daily",
    schedule=AssetOrTimeSchedule(timetable=CronTriggerTimetable("0 6 * * *", timezone="UTC"), assets=invoices),
    tags=TAGS,
):
    report()

# A watched Dag whose task updates another asset, on which another Dag waits.
with DAG("example_scheduling_take_in", schedule=deliveries, tags=TAGS):
    take_into_stock()

with DAG("example_scheduling_downstream", schedule=stock, tags=TAGS):
    count_stock()

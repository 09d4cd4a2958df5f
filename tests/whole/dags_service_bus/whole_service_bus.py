"""Dags of the whole-Airflow test: three watchers on one queue, and one on its dead letters."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger

QUEUE = os.environ["TEST_QUEUE"]


@task
def ids(triggering_asset_events: Any = None) -> list[str]:
    return [message.id for message in messages(triggering_asset_events)]


for name, arguments in {
    "all": {"decode": "json"},
    "even": {"match": "body.even"},
    "odd": {"match": "body.even == `false`"},
    "dead": {"sub_queue": "deadletter"},
}.items():
    trigger = ServiceBusSharedStreamTrigger(QUEUE, **arguments)  # type: ignore[arg-type]
    asset = Asset(f"whole_{name}", watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(f"whole_{name}", schedule=asset):
        ids()

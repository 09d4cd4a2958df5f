"""Dags of the whole-Airflow test: three watchers on one subscription, and one on the dead letters."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger

SUBSCRIPTION = os.environ["TEST_SUBSCRIPTION"]
DEAD_LETTERS = f"{SUBSCRIPTION}-dead"
LEASE: dict[str, Any] = {"ack_deadline_seconds": 15}


@task
def ids(triggering_asset_events: Any = None) -> list[str]:
    return [message.id for message in messages(triggering_asset_events)]


def orders(**arguments: Any) -> PubSubSharedStreamTrigger:
    return PubSubSharedStreamTrigger(None, SUBSCRIPTION, dead_letter_topic=DEAD_LETTERS, **LEASE, **arguments)


for name, trigger in {
    "all": orders(decode="json"),
    "even": orders(match="body.even"),
    "odd": orders(match="body.even == `false`"),
    "dead": PubSubSharedStreamTrigger(None, DEAD_LETTERS, **LEASE),
}.items():
    asset = Asset(f"whole_{name}", watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(f"whole_{name}", schedule=asset):
        ids()

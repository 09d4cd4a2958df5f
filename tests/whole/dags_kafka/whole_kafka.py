"""Dags of the whole-Airflow test: three watchers on one topic."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger

TOPIC = os.environ["TEST_TOPIC"]
STREAM: dict[str, Any] = {
    "group_id": "whole",
    "auto_offset_reset": "earliest",
    "dead_letter_topic": f"{TOPIC}-rejected",
}


@task
def ids(triggering_asset_events: Any = None) -> list[str]:
    return [message.id for message in messages(triggering_asset_events)]


for name, match in {"all": None, "even": "body.even", "odd": "body.even == `false`"}.items():
    trigger = KafkaSharedStreamTrigger(TOPIC, match=match, **STREAM)
    asset = Asset(f"whole_{name}", watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(f"whole_{name}", schedule=asset):
        ids()

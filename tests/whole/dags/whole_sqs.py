"""Dags of the whole-Airflow test: three watchers on one queue."""

from __future__ import annotations

import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

QUEUE = os.environ["TEST_QUEUE"]


@task
def ids(triggering_asset_events: Any = None) -> list[str]:
    return [message.id for message in messages(triggering_asset_events)]


for name, match in {"all": None, "even": "body.even", "odd": "body.even == `false`"}.items():
    asset = Asset(
        f"whole_{name}", watchers=[AssetWatcher(name=name, trigger=SqsSharedStreamTrigger(QUEUE, match=match))]
    )
    with DAG(f"whole_{name}", schedule=asset):
        ids()

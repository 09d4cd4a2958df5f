"""Dags of the test of repeats: on one endpoint a watcher that remembers nothing, and two that do."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_sharedstream.triggers.rest import RestPollTrigger

LIST: dict[str, Any] = {"items_path": "items", "id_path": "id", "poll_interval": 1.0}
REMEMBERS: dict[str, Any] = {"dedupe_window_seconds": 3600, "dedupe_durable": True}

for name, arguments in {
    "plain": {},
    "durable": REMEMBERS,
    "by_key": {**REMEMBERS, "dedupe_key": "body.n"},
}.items():
    trigger = RestPollTrigger(os.environ["TEST_ENDPOINT"], **LIST, **arguments)
    asset = Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(name, schedule=asset, max_active_runs=1):
        EmptyOperator(task_id="work")

"""Dags of the test of repeats: on one queue a watcher that remembers nothing, and one that does."""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger

REMEMBERS: dict[str, Any] = {"dedupe_window_seconds": 3600, "dedupe_durable": True}

for name, arguments in {"plain": {}, "durable": REMEMBERS}.items():
    trigger = ServiceBusSharedStreamTrigger(os.environ["TEST_QUEUE"], **arguments)
    asset = Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(name, schedule=asset, max_active_runs=1):
        EmptyOperator(task_id="work")

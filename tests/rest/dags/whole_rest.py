"""Dags of the whole-Airflow test: two watchers on one endpoint."""

from __future__ import annotations

import os

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

from airflow_provider_sharedstream.triggers.rest import RestPollTrigger

for name, match in {"all": None, "even": "body.even"}.items():
    trigger = RestPollTrigger(
        os.environ["TEST_ENDPOINT"], items_path="items", id_path="id", poll_interval=2.0, match=match
    )
    asset = Asset(f"whole_rest_{name}", watchers=[AssetWatcher(name=name, trigger=trigger)])
    with DAG(f"whole_rest_{name}", schedule=asset, max_active_runs=1):
        EmptyOperator(task_id="done")

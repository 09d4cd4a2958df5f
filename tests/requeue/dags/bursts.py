"""Dags of the burst tests: one for each number of runs at once and each run time, every one with a directory of its
own. Each file makes one event.
"""

from __future__ import annotations

import json
import os
import time

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger


@task
def work(seconds: float) -> None:
    time.sleep(seconds)


for case in json.loads(os.environ["BURST_CASES"]):
    trigger = DirectoryFileDeleteTrigger(
        case["directory"], pattern="*", poke_interval=1, settle_seconds=0, batch_size=1, batch_window_seconds=0
    )
    asset = Asset(case["dag_id"], watchers=[AssetWatcher(name=case["dag_id"], trigger=trigger)])
    with DAG(case["dag_id"], schedule=[asset], max_active_runs=case["max_active_runs"]):
        if case["seconds"]:
            work(case["seconds"])
        else:
            EmptyOperator(task_id="work")

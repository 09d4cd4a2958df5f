"""Dags of the test of repeats: on a queue and on a directory a watcher that remembers what was stored, and one that
doesn't. And a Dag on two assets, whose tasks read their messages in every way there is.
"""

from __future__ import annotations

import os
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

REMEMBERS: dict[str, Any] = {"dedupe_window_seconds": 3600, "dedupe_durable": True}
DIRECTORY: dict[str, Any] = {"pattern": "*", "settle_seconds": 0, "poke_interval": 0.5}
TEMPLATE = "echo '{% for one in macros.sharedstream.messages(triggering_asset_events) %}{{ one.id }} {% endfor %}'"

assets: dict[str, Asset] = {}
for name, arguments in {"plain": {}, "durable": REMEMBERS}.items():
    queue = SqsSharedStreamTrigger(os.environ["TEST_QUEUE"], **arguments)
    directory = DirectoryFileDeleteTrigger(os.environ["TEST_DIRECTORY"], **DIRECTORY, **arguments)
    for source, trigger in {"queue": queue, "directory": directory}.items():
        asset = assets[f"{source}_{name}"] = Asset(
            f"{source}_{name}", watchers=[AssetWatcher(name=name, trigger=trigger)]
        )
        with DAG(f"{source}_{name}", schedule=[asset]):
            EmptyOperator(task_id="work")


def ids(triggering_asset_events: Any = None) -> list[str]:
    return [message.id for message in messages(triggering_asset_events)]


with DAG("reader", schedule=assets["queue_plain"] | assets["directory_plain"]):

    @task
    def taskflow(triggering_asset_events: Any = None) -> dict[str, list[str]]:
        return {
            name: [message.id for message in messages(triggering_asset_events, asset=asset)]
            for name, asset in assets.items()
        }

    taskflow()
    PythonOperator(task_id="classic", python_callable=ids)
    BashOperator(task_id="template", bash_command=TEMPLATE)

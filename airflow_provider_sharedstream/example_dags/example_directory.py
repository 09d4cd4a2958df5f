"""Two Dags on one directory, which is scanned once for both.

A file is deleted when every watcher that it matches has its event stored; one that no watcher matches stays. Since the
file is gone when the task runs, the message carries its content; with ``archive_directory`` it would carry the file's
new path.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger

log = logging.getLogger(__name__)

DIRECTORY = os.environ.get("EXAMPLE_DIRECTORY", "/var/spool/example")
SHARED: dict[str, Any] = {"poke_interval": 2.0, "settle_seconds": 2.0, "content_up_to_bytes": 65_536}
"""Watchers that agree in these share one scan."""

tables = Asset(
    "example_directory_tables",
    watchers=[AssetWatcher(name="tables", trigger=DirectoryFileDeleteTrigger(DIRECTORY, pattern="*.csv", **SHARED))],
)
end_of_day = Asset(
    "example_directory_end_of_day",
    watchers=[
        AssetWatcher(
            name="end_of_day", trigger=DirectoryFileDeleteTrigger(DIRECTORY, filename="end-of-day.json", **SHARED)
        )
    ],
)


@task
def report(triggering_asset_events: Any = None) -> list[str]:
    """Log which files started this run, and return their names."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s, %s bytes: %s", message.attributes["path"], message.attributes["size"], message.body)
    return [message.attributes["name"] for message in received]


for asset in (tables, end_of_day):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "directory"]):
        report()

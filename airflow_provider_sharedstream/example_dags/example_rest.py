"""Three Dags on a REST API: two on one list of releases, which is requested once for both, and one on a status.

``http_default`` is the connection, or whatever leads to the API's host; if the API wants a token, it belongs in
the connection's extra: ``{"bearer_token": "..."}``.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.triggers.rest import RestPollTrigger

log = logging.getLogger(__name__)

RELEASES = os.environ.get("EXAMPLE_REST_RELEASES", "http://127.0.0.1:8000/releases")
STATUS = os.environ.get("EXAMPLE_REST_STATUS", "http://127.0.0.1:8000/status")
SHARED: dict[str, Any] = {"items_path": "releases", "id_path": "id", "poll_interval": 60.0}
"""Watchers that agree in these share one poll. Further pages are followed where the API links to them."""

releases = Asset(
    "example_rest_releases",
    watchers=[AssetWatcher(name="releases", trigger=RestPollTrigger(RELEASES, match="!(body.draft)", **SHARED))],
)
# What is listed already when this Dag is deployed is not new to it.
security_fixes = Asset(
    "example_rest_security_fixes",
    watchers=[
        AssetWatcher(
            name="security_fixes",
            trigger=RestPollTrigger(RELEASES, match="contains(body.tags, 'security')", first_poll="new", **SHARED),
        )
    ],
)
# The whole body: a message for each change, and none while it stays as it is.
status = Asset(
    "example_rest_status",
    watchers=[AssetWatcher(name="status", trigger=RestPollTrigger(STATUS, poll_interval=30.0))],
)


@task
def report(triggering_asset_events: Any = None) -> list[str]:
    """Log what started this run, and return the ids."""
    received = messages(triggering_asset_events)
    for message in received:
        log.info("%s of %s: %s", message.id, message.attributes["endpoint"], message.body)
    return [message.id for message in received]


for asset in (releases, security_fixes, status):
    with DAG(asset.name, schedule=asset, tags=["example", "sharedstream", "rest"]):
        report()

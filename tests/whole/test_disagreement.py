"""Two watchers of a queue disagree in an argument, and somebody mends that while messages wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.airflow import Airflow
from services.sqs import SqsServer
from tests.whole.common import bodies_by_asset, numbered, shares

DAGS = """
from airflow.sdk import DAG, Asset, AssetWatcher
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

for name, match, more in (("whole_even", "body.even", {{}}), ("whole_odd", "body.even == `false`", {more})):
    trigger = SqsSharedStreamTrigger("disputed", match=match, **more)
    with DAG(name, schedule=[Asset(name, watchers=[AssetWatcher(name=name, trigger=trigger)])]):
        pass
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_waited_reaches_both(tmp_path: Path) -> None:
    """Airflow deletes the trigger that was changed seconds before it makes its successor."""
    (tmp_path / "dags").mkdir()
    file = tmp_path / "dags" / "disputed.py"
    file.write_text(DAGS.format(more={"batch_size": 7}))
    with SqsServer(tmp_path / "sqs") as server:
        queue = server.create_queue("disputed")
        with Airflow(
            tmp_path / "airflow", tmp_path / "dags", connections={"aws_default": server.connection()}
        ) as airflow:
            log = airflow.components[airflow.triggerers[0]].log_file
            airflow.wait_for("the dispute", lambda: "they differ in batch_size" in log.read_text())
            sent = set(numbered(range(40)))
            queue.send(sent)
            assert queue.depth().total == 40
            file.write_text(DAGS.format(more={}))
            airflow.wait_for("an empty queue", lambda: queue.depth().total == 0)
            expected = {asset: bodies for asset, bodies in shares(sent).items() if asset != "whole_all"}
            assert {asset: set(bodies) for asset, bodies in bodies_by_asset(airflow).items()} == expected

"""The example Dags on a REST API, run by a whole Airflow."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_sharedstream import example_dags
from services.airflow import Airflow
from services.rest import Response, RestServer


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_example_dags_run(tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(Path(example_dags.__path__[0]) / "example_rest.py", dags)
    releases = [
        {"id": "1.0", "draft": False, "tags": ["security"]},
        {"id": "1.1", "draft": True, "tags": []},
    ]
    with RestServer() as server:
        env = {
            "EXAMPLE_REST_RELEASES": server.serve(
                "/r", lambda _: Response(json.dumps({"releases": releases}).encode())
            ),
            "EXAMPLE_REST_STATUS": server.serve("/s", Response(b'{"state": "fine"}')),
        }
        with Airflow(tmp_path / "airflow", dags, env=env) as airflow:

            def returned(dag_id: str) -> list[str]:
                """Ids of the messages that the Dag's runs were given."""
                runs = [run["dag_run_id"] for run in airflow.client.dag_runs(dag_id) if run["state"] == "success"]
                return sorted(one for run in runs for one in airflow.client.xcom(dag_id, run, "report"))

            airflow.wait_for("a run on the releases", lambda: returned("example_rest_releases") == ["1.0"])
            airflow.wait_for("a run on the status", lambda: len(returned("example_rest_status")) == 1)
            releases.append({"id": "1.2", "draft": False, "tags": ["security"]})
            airflow.wait_for("a run on a fix", lambda: returned("example_rest_security_fixes") == ["1.2"])
            airflow.wait_for("one more on the releases", lambda: "1.2" in returned("example_rest_releases"))
            assert returned("example_rest_releases") == ["1.0", "1.2"]
            assert len(returned("example_rest_status")) == 1
            assert not airflow.client.import_errors()

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from services.airflow import Airflow
from services.process import listening, wait_until

DAG = """
import os
from airflow.sdk import BaseHook, dag, task

@dag(schedule=None)
def trivial():
    @task
    def read():
        return [BaseHook.get_connection("given").host, os.environ.get("AIRFLOW__CORE__FROM_OUTSIDE")]
    read()

trivial()
"""


@pytest.mark.slow
def test_it_runs_a_dag_and_its_components_can_be_killed_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FROM_OUTSIDE", "1")
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "trivial.py").write_text(DAG)
    (dags / "broken.py").write_text("from airflow.sdk import dag\n1 / 0\n")
    with Airflow(tmp_path / "home", dags, connections={"given": "http://somewhere"}) as airflow:
        airflow.wait_for("Dag", lambda: airflow.client.dags() == ["trivial"])
        run = airflow.client.trigger("trivial")
        airflow.wait_for("successful run", lambda: airflow.client.run_states()["trivial"] == {"success": 1})
        assert airflow.client.xcom("trivial", run, "read") == ["somewhere", None]
        airflow.wait_for("import error", lambda: "broken.py" in airflow.client.import_errors())

        first = airflow.job_id("triggerer-1")
        airflow.kill_runner("triggerer-1")
        triggerer = airflow.components["triggerer-1"]
        assert wait_until(lambda: not triggerer.running, limit_seconds=60)
        triggerer.start()
        assert airflow.job_id("triggerer-1") > first
        assert airflow.query("SELECT state FROM job WHERE id = :id", id=airflow.job_id("triggerer-1")) == [("running",)]
        assert airflow.runner("triggerer-1").is_running()

        os.kill(airflow.components["scheduler"].pid, 9)
        with pytest.raises(RuntimeError, match="scheduler has ended while waiting for nothing; its log ends with"):
            airflow.wait_for("nothing", lambda: False)
        everything = [airflow.components[name].pid for name in airflow.components]
        everything += [child.pid for component in airflow.components.values() for child in component.children()]
    assert not listening(airflow.port)
    assert [pid for pid in everything if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"] == []

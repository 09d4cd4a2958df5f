"""`messages()` where Dags are run: in TaskFlow, in classic operators, in templates, in `dag.test()`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from airflow.sdk.execution_time import macros
from airflow.sdk.plugins_manager import integrate_macros_plugins
from jinja2 import Environment

from airflow_provider_sharedstream.messages import messages
from tests.messages.airflow_path import as_triggering

TEMPLATE = (
    "{% for message in macros.sharedstream.messages(triggering_asset_events) %}{{ message.body.order }} {% endfor %}end"
)
STORED = {
    "from_trigger": True,
    "payload": {
        "source": "sqs",
        "stream": "orders",
        "messages": [{"id": str(n), "body": {"order": n}} for n in (7, 8)],
    },
}
DAG_FILE = f"""
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, task

from airflow_provider_sharedstream.messages import messages

def count(triggering_asset_events=None):
    assert messages(triggering_asset_events) == []

with DAG("tested", schedule=Asset("orders")) as dag:

    @task
    def taskflow(triggering_asset_events=None):
        assert messages(triggering_asset_events) == []

    taskflow() >> [
        PythonOperator(task_id="classic", python_callable=count),
        BashOperator(task_id="template", bash_command="echo -n '{TEMPLATE}' > $AIRFLOW_HOME/written"),
    ]

if __name__ == "__main__":
    print("state", dag.test().state)
"""


def test_the_macro_is_there_without_being_declared() -> None:
    integrate_macros_plugins()
    assert vars(macros)["sharedstream"].messages is messages
    rendered = Environment().from_string(TEMPLATE)
    assert rendered.render(macros=macros, triggering_asset_events=as_triggering(STORED)) == "7 8 end"
    assert rendered.render(macros=macros, triggering_asset_events=None) == "end"


@pytest.mark.slow
def test_dag_test_runs_with_no_messages(tmp_path: Path) -> None:
    """No event started such a run: the list is empty, in every kind of task."""
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "tested.py").write_text(DAG_FILE)
    env = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    env |= {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    output = ""
    for command in (["-m", "airflow", "db", "migrate"], [str(dags / "tested.py")]):
        done = subprocess.run([sys.executable, *command], env=env, cwd=tmp_path, capture_output=True, text=True)
        output = done.stdout + done.stderr
        assert done.returncode == 0, output[-4000:]
    assert "state success" in output, output[-4000:]
    assert (tmp_path / "written").read_text() == "end"

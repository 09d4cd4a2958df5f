"""What to do with an Airflow that stays up: Dags of one's own, messages, files, commands."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

from demo.workload import ONE_MORE
from services.airflow import Airflow
from services.sqs import CHECKOUT, SqsServer
from services.sqs_queue import SqsQueue

OWN_QUEUE = "orders"
"""The one of the Dag in the README and in docs/quickstart.md."""


def invite(airflow: Airflow, sqs: SqsServer, examples: SqsQueue, inbox: Path, own_dags: Path) -> str:
    """Make what is needed to go on by hand, and say how.

    :param examples: the queue of the example Dags.
    :param own_dags: a folder of Dags that outlives the demo; Airflow gets to see it now.
    """
    own_dags.mkdir(exist_ok=True)
    (airflow.dags / "own").symlink_to(own_dags, target_is_directory=True)
    sqs.create_queue(OWN_QUEUE)
    command = airflow.home / "airflow.sh"
    airflow.write_command(command)
    return f"""
UI              {airflow.url}, without a login: everybody is its admin
your own Dags   {own_dags}
                A new file is found within {airflow.parse_seconds} s, its Dags unpaused; the folder outlives the demo.
                The Dag of docs/quickstart.md works as it is: the queue {OWN_QUEUE!r} is there, aws_default leads to it.
logs            {airflow.home / "logs"}
                triggerer-1.log: watchers and brokers; dag_id=*/: each task; dag_processor/: each Dag file
airflow         {_shell(command)} dags list-import-errors
                or any other command

A message to your queue:
  {_send(sqs, OWN_QUEUE, {"region": "eu", "amount": 250})}
One for the example Dags:
  {_send(sqs, examples.name, ONE_MORE)}
A file for the example Dags:
  echo item,number > {_shell(inbox / "friday.csv")}
"""


def _send(sqs: SqsServer, queue: str, body: object) -> str:
    arguments = (sys.executable, "-m", "services.send", "sqs", sqs.endpoint_url, queue, json.dumps(body))
    return f"(cd {_shell(CHECKOUT)} && {shlex.join(arguments)})"


def _shell(path: Path) -> str:
    return shlex.quote(str(path))

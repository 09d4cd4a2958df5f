"""`python -m services`, as somebody uses it who tries a Dag of his own on a local broker."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from services.process import wait_until
from services.sqs import CHECKOUT

COMMAND = [sys.executable, "-m", "services"]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "output"


@pytest.fixture
def brokers(output: Path) -> Iterator[subprocess.Popen[bytes]]:
    with output.open("wb") as file:
        started = subprocess.Popen([*COMMAND, "sqs", "pubsub"], cwd=CHECKOUT, stdout=file, stderr=subprocess.STDOUT)
    try:
        yield started
    finally:
        # Not SIGINT: whatever runs behind a shell ignores it.
        started.terminate()
        started.wait(timeout=120)


def test_it_says_how_to_reach_them_and_leaves_nothing_running(output: Path, brokers: subprocess.Popen[bytes]) -> None:
    assert wait_until(lambda: brokers.poll() is not None or "until Ctrl-C" in output.read_text(), limit_seconds=600)
    said = output.read_text()
    assert brokers.poll() is None, said
    assert "# sqs, pubsub until Ctrl-C" in said
    exported = dict(shlex.split(line)[1].split("=", 1) for line in said.splitlines() if line.startswith("export "))
    assert exported.keys() == {
        "AIRFLOW_CONN_AWS_DEFAULT",
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT",
        "PUBSUB_EMULATOR_HOST",
    }
    commands = re.findall(r"^# send: (.+)$", said, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        sent = subprocess.run(command, shell=True, check=True, stdout=subprocess.PIPE, text=True, timeout=120)
        assert sent.stdout == "sent to orders\n"

    servers = psutil.Process(brokers.pid).children(recursive=True)
    assert servers
    brokers.terminate()
    assert brokers.wait(timeout=120) == 0, output.read_text()
    assert output.read_text().endswith("# nothing is left running\n")
    assert wait_until(lambda: not any(server.is_running() for server in servers), limit_seconds=30)


def test_a_broker_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    ended = subprocess.run(
        [*COMMAND, "rabbitmq"], cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 2
    assert "[sqs] [kafka] [pubsub] [service_bus]" in ended.stderr


def test_a_message_that_nobody_takes_is_not_sent() -> None:
    command = [sys.executable, "-m", "services.send", "sqs", "http://127.0.0.1:1", "orders", "{}"]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.startswith("not sent: ")

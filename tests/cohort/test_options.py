"""The options as Airflow has them."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from airflow_provider_sharedstream import options
from airflow_provider_sharedstream.get_provider_info import get_provider_info
from airflow_provider_sharedstream.stream.roll_call import COHORT_TIMEOUT_SECONDS
from airflow_provider_sharedstream.triggers.base import JOIN_GRACE_SECONDS

OPTIONS = get_provider_info()["config"]["sharedstream"]["options"]


def test_the_defaults_are_those_of_the_code() -> None:
    assert float(OPTIONS["cohort_timeout_seconds"]["default"]) == COHORT_TIMEOUT_SECONDS
    assert float(OPTIONS["join_grace_seconds"]["default"]) == JOIN_GRACE_SECONDS


def test_airflow_knows_them() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "config", "list", "--section", "sharedstream"],
        capture_output=True,
        text=True,
        check=True,
    )
    listed = {line.partition(" = ")[0].lstrip("# ") for line in done.stdout.splitlines() if " = " in line}
    assert listed == set(OPTIONS)


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 60.0), ("5", 5.0), ("0", 0.0), ("2.5", 2.5), ("a minute", 60.0), ("-1", 60.0), ("nan", 60.0), ("inf", 60.0)],
)
def test_seconds(text: str, value: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__COHORT_TIMEOUT_SECONDS", text)
    with caplog.at_level(logging.ERROR):
        assert options.seconds("cohort_timeout_seconds", 60.0) == value
    unusable = text in ("a minute", "-1", "nan", "inf")
    assert [repr(text) in record.getMessage() for record in caplog.records] == [True] * unusable


@pytest.mark.parametrize(
    ("text", "value"), [("True", True), ("off", True), ("f", False), ("False", False), ("0", False)]
)
def test_a_switch(text: str, value: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__COHORT", text)
    with caplog.at_level(logging.ERROR):
        assert options.switch("cohort", True) is value
    assert len(caplog.records) == (text == "off")

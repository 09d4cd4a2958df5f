"""The options as Airflow has them."""

from __future__ import annotations

import subprocess
import sys

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

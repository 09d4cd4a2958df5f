"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before Airflow is imported, which writes its configuration there.
os.environ.setdefault("AIRFLOW_HOME", str(Path(__file__).parents[1] / ".local" / "airflow"))


@pytest.fixture(scope="session", autouse=True)
def no_roster() -> None:
    """Says once that no supervisor writes one, in no test's log."""
    from airflow_provider_sharedstream.stream.roster import roster_reader

    roster_reader()

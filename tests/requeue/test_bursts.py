"""Every message of a burst is in a run, and in one only, on a whole Airflow. `tests.requeue.bursts` measures more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.requeue.bursts import Case, burst, deployment, show

CASES = (Case(1, 2), Case(4, 0), Case(16, 0))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("database", ["postgresql", "sqlite"])
def test_every_message_is_in_a_run(tmp_path: Path, database: str) -> None:
    with deployment(tmp_path, CASES, database) as airflow:
        airflow.wait_for("all Dags", lambda: len(airflow.client.dags()) == len(CASES))
        results = [result for number in (1, 60) for result in burst(airflow, tmp_path, CASES, number)]
    show(results)
    for result in results:
        assert result.in_runs == result.events == result.burst
        assert result.again == 0
        assert result.runs <= result.burst

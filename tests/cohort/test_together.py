"""A whole Airflow with two triggerers: what `make test` shows of the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory)


def test_dags_added_and_torn_apart_and_changed(deployment: Deployment, note: Callable[[Result], Result]) -> None:
    assert note(scenarios.added(deployment, messages=600)).lost == 0
    assert note(scenarios.torn_apart(deployment, times=2, messages=600)).lost == 0
    assert note(scenarios.match_changed(deployment, times=2, messages=600)).lost == 0


def test_only_triggerers_do_anything(deployment: Deployment) -> None:
    assert len(deployment.rosters()) == len(deployment.airflow.triggerers)
    for name in ("scheduler", "dag-processor", "api-server"):
        assert "sharedstream.supervisor" not in deployment.airflow.components[name].log_file.read_text()

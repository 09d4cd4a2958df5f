"""A whole Airflow whose triggerers and database end while messages flow: what `make test` shows of the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

Note = Callable[[Result], Result]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory, env={"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "20"})


def test_triggerers_runners_and_the_database_killed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.killed(deployment, messages=600)).lost == 0


def test_streams_are_spread_evenly(deployment: Deployment, note: Note) -> None:
    result, counts = scenarios.spread(deployment, streams=4, messages=600)
    assert note(result).lost == 0
    assert counts == [[2, 2], [0, 4]]

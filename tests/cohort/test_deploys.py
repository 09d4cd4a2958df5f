"""A whole Airflow whose Dag files come, go and break while messages flow: what `make test` shows of the scenarios."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import assert_said_loudly, together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

Note = Callable[[Result], Result]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory, env={"AIRFLOW__SHAREDSTREAM__COHORT_TIMEOUT_SECONDS": "10"})


def test_dags_that_come_and_go(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.come_and_go(deployment, messages=600)).lost == 0


def test_a_shared_argument_changed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.shared_changed(deployment, times=2, messages=600)).lost == 0


def test_one_that_can_not_start(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.cannot_start(deployment, messages=600)).lost == 0
    assert_said_loudly(deployment, "goes on without waiting for cannot_start_2/w")

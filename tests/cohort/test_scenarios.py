"""Nothing is lost with two triggerers, whatever happens to them, to the Dag files, or to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import assert_said_loudly, together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]

Note = Callable[[Result], Result]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory)


def test_dags_added_one_after_another(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.added(deployment)).lost == 0


def test_ownership_torn_apart_by_hand(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.torn_apart(deployment)).lost == 0


def test_triggerers_runners_and_the_database_killed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.killed(deployment)).lost == 0


def test_a_watchers_match_changed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.match_changed(deployment)).lost == 0
    assert deployment.log_lines("match_changed_0 .* was not stored, since its trigger is gone"), "some were on the way"


def test_a_shared_argument_changed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.shared_changed(deployment)).lost == 0


def test_dags_that_come_and_go(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.come_and_go(deployment)).lost == 0


def test_one_that_can_not_start(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.cannot_start(deployment)).lost == 0
    assert_said_loudly(deployment, "goes on without waiting for cannot_start_2/w")

"""The control: the same scripts with the cohort switched off lose messages. So the scripts can tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]

Note = Callable[[Result], Result]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory, env={"AIRFLOW__SHAREDSTREAM__COHORT": "False"})


def test_it_is_said_that_it_is_off(deployment: Deployment) -> None:
    deployment.until("the line", lambda: len(deployment.log_lines("are not kept together: .* cohort is off")) >= 2)


def test_dags_added_one_after_another(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.added(deployment, "added (off)")).lost > 0


def test_ownership_torn_apart_by_hand(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.torn_apart(deployment, "torn apart (off)", times=3)).lost > 0


def test_triggerers_runners_and_the_database_killed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.killed(deployment, "killed (off)")).lost > 0


def test_a_watchers_match_changed(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.match_changed(deployment, "match changed (off)", times=3)).lost > 0


def test_dags_that_come_and_go(deployment: Deployment, note: Note) -> None:
    assert note(scenarios.come_and_go(deployment, "come and go (off)")).lost > 0

"""Twelve streams on three triggerers, and on two when one of them is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.cohort import scenarios
from tests.cohort.conftest import together
from tests.cohort.deployment import Deployment, Result

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(3000)]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    yield from together(tmp_path_factory, triggerers=3)


def test_streams_are_spread_evenly(deployment: Deployment, note: Callable[[Result], Result]) -> None:
    result, counts = scenarios.spread(deployment)
    note(result)
    assert counts == [[4, 4, 4], [0, 6, 6]]
    assert result.lost == 0

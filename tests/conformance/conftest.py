"""What the suite's own functions remember ends with a test."""

from __future__ import annotations

import pytest

from tests.conformance import filters


@pytest.fixture(autouse=True)
def _forget() -> None:
    filters.REJECTED.clear()
    filters.FAILED_ONCE.clear()

"""A failed assertion of what these tests share shows its values, as one of a test does."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.whole.common")

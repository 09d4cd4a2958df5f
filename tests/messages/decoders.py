"""A user's decoder, for the tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def numbers(data: bytes, headers: Mapping[str, Any]) -> tuple[int, ...]:
    if len(data) != 4:
        raise ValueError(f"expected 4 bytes, got {len(data)}")
    return tuple(data)


async def later(data: bytes, headers: Mapping[str, Any]) -> str:
    return "too late"


not_callable = 5

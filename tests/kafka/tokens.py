"""Functions that connections in these tests name as `oauth_cb`."""

from __future__ import annotations

import time

from services.kafka import unsecured_token


def for_alice(config: str) -> tuple[str, float]:
    assert config == "the config"
    return unsecured_token("alice"), time.time() + 3600


async def for_alice_async(config: str) -> str:
    return unsecured_token("alice")


def broken(config: str) -> str:
    raise ZeroDivisionError("no token today")


def expired(config: str) -> tuple[str, float]:
    return unsecured_token("alice", valid_seconds=-60), time.time() + 3600

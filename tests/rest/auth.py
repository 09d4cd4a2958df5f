"""A way to authenticate of a user's own."""

from __future__ import annotations

from collections.abc import Generator

import httpx


class Signed(httpx.Auth):
    """Signs each request with a key."""

    def __init__(self, key: str, prefix: str = "sig") -> None:
        self.key = key
        self.prefix = prefix

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["X-Signature"] = f"{self.prefix} {self.key} {request.method}"
        yield request


def nothing_of_the_kind(*args: object) -> str:
    return "text"

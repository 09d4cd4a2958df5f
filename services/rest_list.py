"""A list of items behind a path of :class:`~services.rest.RestServer`, in the ways in which APIs show one."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from services.rest import Request, Response, RestServer

Pages = Literal["one", "link", "url", "token", "page", "offset", "cursor"]


class RestList:
    """Items, each a JSON value, oldest first.

    :param server: answers for it.
    :param path: where.
    :param pages: how further pages are pointed at.
    :param page_size: items on one.
    :param newest_first: the order of the list.
    :param etags: answer 304 where nothing has changed.
    """

    def __init__(
        self,
        server: RestServer,
        path: str,
        *,
        pages: Pages = "one",
        page_size: int = 100,
        newest_first: bool = False,
        etags: bool = False,
    ) -> None:
        self.server = server
        self.path = path
        self.pages = pages
        self.page_size = page_size
        self.newest_first = newest_first
        self.etags = etags
        self.items: list[Any] = []
        self.not_modified = 0
        """How often 304 was answered."""
        self.url = server.serve(path, self.answer)

    def publish(self, *items: Any) -> None:
        """Add items."""
        self.items = [*self.items, *items]

    def answer(self, request: Request) -> Response:
        """One page."""
        items = self.items[::-1] if self.newest_first else self.items
        if self.pages == "cursor":
            since = int(request.param("since", "0"))
            page = items[since : since + self.page_size]
            return self._json(request, {"items": page, "next_cursor": since + len(page)}, {})
        start = self._start(request)
        size = len(items) if self.pages == "one" else self.page_size
        more = start + size < len(items)
        document: dict[str, Any] = {"items": items[start : start + size], "total": len(items)}
        headers = {}
        following = f"{self.url}?at={start + size}"
        if self.pages == "link" and more:
            headers["Link"] = f'<{self.url}>; rel="first", <{following}>; rel="next"; title="a, b"'
        elif self.pages == "url":
            document["next"] = f"{self.path}?at={start + size}" if more else None
        elif self.pages == "token":
            document["next_token"] = f"t{start + size}" if more else None
        return self._json(request, document, headers)

    def _start(self, request: Request) -> int:
        if self.pages == "page":
            return (int(request.param("page", "1")) - 1) * self.page_size
        if self.pages == "offset":
            return int(request.param("offset", "0"))
        if self.pages == "token":
            return int(request.param("token", "t0")[1:])
        return int(request.param("at", "0"))

    def _json(self, request: Request, document: Any, headers: dict[str, str]) -> Response:
        body = json.dumps(document).encode()
        headers["Content-Type"] = "application/json"
        if self.etags:
            headers["ETag"] = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
            if request.headers.get("if-none-match") == headers["ETag"]:
                self.not_modified += 1
                return Response(status=304, headers=headers)
        return Response(body, headers=headers)

"""An HTTP server on 127.0.0.1 that counts, and misbehaves when a test says so."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import h11

from services.tcp import TcpServer


class Request(NamedTuple):
    """One request that came."""

    method: str
    target: str
    """As it was sent: a path with its query, or a whole address where the server is taken for a proxy."""
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes
    at: float
    """Monotonic time."""

    def param(self, name: str, default: str = "") -> str:
        """The last value of a query parameter."""
        return self.query.get(name, [default])[-1]


@dataclass
class Response:
    """What is answered.

    :param drip_seconds: between two bytes of the body.
    :param raw: sent instead of all of it, as it is; the connection is closed then.
    :param length: what Content-Length says; default: the truth.
    """

    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drip_seconds: float = 0.0
    raw: bytes | None = None
    length: int | None = None


Handler = Callable[[Request], Response]


class RestServer(TcpServer):
    """Answers by path.

    :param tls: makes it an https server.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(tls)
        self.requests: list[Request] = []
        """Everything that came, in order."""
        self._handlers: dict[str, Handler] = {}

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def serve(self, path: str, handler: Handler | Response) -> str:
        """Answer requests for `path`; return its address. Any other path is 404."""
        self._handlers[path] = (lambda _: handler) if isinstance(handler, Response) else handler
        return f"{self.url}{path}"

    def count(self, path: str | None = None) -> int:
        """How many requests came for a path; None: for any."""
        return sum(1 for request in list(self.requests) if path in (None, request.path))

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(h11.ProtocolError):
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        while (request := await _receive(connection, reader)) is not None:
            self.requests.append(request)
            handler = self._handlers.get(request.path)
            response = handler(request) if handler is not None else Response(status=404)
            if response.raw is not None:
                writer.write(response.raw)
                await writer.drain()
                return
            await _send(connection, writer, request, response)
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                return
            connection.start_next_cycle()


async def _receive(connection: h11.Connection, reader: asyncio.StreamReader) -> Request | None:
    head: h11.Request | None = None
    body = b""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            target = head.target.decode("latin-1")
            parts = urlsplit(target)
            return Request(
                head.method.decode(),
                target,
                parts.path,
                parse_qs(parts.query, keep_blank_values=True),
                {name.decode(): value.decode("latin-1") for name, value in head.headers},
                body,
                time.monotonic(),
            )
        else:
            return None


async def _send(connection: h11.Connection, writer: asyncio.StreamWriter, request: Request, response: Response) -> None:
    headers = [(name.lower(), value) for name, value in response.headers.items()]
    if not any(name in ("content-length", "transfer-encoding") for name, _ in headers) and response.status != 304:
        headers.append(("content-length", str(len(response.body) if response.length is None else response.length)))
    with contextlib.suppress(ValueError):
        reason = HTTPStatus(response.status).phrase.encode()
    head = h11.Response(
        status_code=response.status,
        headers=[(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
        reason=reason if response.status in HTTPStatus._value2member_map_ else b"",
    )
    writer.write(connection.send(head) or b"")
    if request.method != "HEAD" and response.status not in (204, 304):
        pieces = [response.body[at : at + 1] for at in range(len(response.body))] if response.drip_seconds else None
        for piece in pieces if pieces is not None else [response.body]:
            writer.write(connection.send(h11.Data(data=piece)) or b"")
            await writer.drain()
            if response.drip_seconds:
                await asyncio.sleep(response.drip_seconds)
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()


def in_turn(*responses: Response | Handler) -> Handler:
    """Answer with one after the other; the last stays."""
    left = collections.deque(responses)

    def handler(request: Request) -> Response:
        response = left[0] if len(left) == 1 else left.popleft()
        return response if isinstance(response, Response) else response(request)

    return handler

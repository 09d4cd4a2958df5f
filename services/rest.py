"""An HTTP server on 127.0.0.1 that counts, and misbehaves when a test says so."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

import h11

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


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


class RestServer:
    """Answers by path. It runs in a thread of its own; all methods may be called from any thread.

    :param tls: makes it an https server.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.requests: list[Request] = []
        """Everything that came, in order."""
        self.connections = 0
        """Accepted so far."""
        self._tls = tls
        self._handlers: dict[str, Handler] = {}
        # Bound for as long as the server lives, so that the port stays ours while nobody listens.
        self._keeper = _bound(0)
        self.port = int(self._keeper.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"rest-{self.port}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

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

    def start(self) -> None:
        self._thread.start()
        self.heal()

    def stop(self) -> None:
        """End; it can't be started again. Does nothing the second time."""
        if self._loop.is_closed():
            return
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._keeper.close()

    def cut(self) -> None:
        """Drop every connection and refuse new ones, until `heal`."""
        self._call(self._cut())

    def heal(self) -> None:
        self._call(self._heal())

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._open):
            connection.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _heal(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self.port), ssl=self._tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        self.connections += 1
        try:
            await self._serve(reader, writer)
        except (OSError, h11.ProtocolError, asyncio.CancelledError):
            # Cancelled only by `cut`; asyncio would log a cancelled handler as an error.
            pass
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


def _bound(port: int) -> socket.socket:
    """A socket bound to the port of 127.0.0.1, beside others of this program."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound

"""A TCP proxy on 127.0.0.1 that can be cut, stalled, slowed and counted: a network that fails when a test says so."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import socket
import ssl
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

HALF_OPEN_SECONDS = 0.2
"""How long what is still on its way may take once one side has closed."""


class TcpProxy:
    """Passes on what comes to `port`, in a thread of its own. All methods may be called from any thread.

    :param target_port: where to.
    :param target_host: default: this machine.
    :param tls: spoken with clients, not with the target.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> None:
        self.target = (target_host, target_port)
        self._tls = tls
        self.delay_seconds = 0.0
        """How much later each piece is passed on, in each direction."""
        self.opened = 0
        """Connections accepted so far."""
        self.bytes_up = 0
        """Bytes that came from clients so far."""
        self.bytes_down = 0
        """Bytes that came from the server so far."""
        # Bound for as long as the proxy lives, so that the port stays ours while nobody listens.
        self._keeper = _bound(0)
        self.port = int(self._keeper.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{self.port}", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def open(self) -> int:
        """Connections open now."""
        return len(self._connections)

    def start(self) -> None:
        self._thread.start()
        self.heal()

    def stop(self) -> None:
        """Cut, and give the port back; the proxy can't be started again. Does nothing the second time."""
        if self._loop.is_closed():
            return
        if self._thread.is_alive():
            self.cut()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()
        self._keeper.close()

    def cut(self) -> None:
        """Drop every connection and refuse new ones, until `heal`."""
        self._call(self._cut())

    def stall(self) -> None:
        """Go on accepting, but pass nothing in either direction, until `heal`."""
        self._call(self._stall())

    def heal(self) -> None:
        """Accept and pass on; what came while stalled is passed on first."""
        self._call(self._heal())

    def seen_from_client(self, connection: int, piece: bytes) -> None:
        """Called with each piece that a client sends; for subclasses that count requests."""

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=30)

    async def _cut(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        open_now = list(self._connections)
        for connection in open_now:
            connection.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)

    async def _stall(self) -> None:
        self._flowing.clear()

    async def _heal(self) -> None:
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self.port), ssl=self._tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.opened += 1
        number = self.opened
        try:
            await self._serve(number, reader, writer)
        except (OSError, asyncio.CancelledError):
            # Cancelled only by `cut`; the task ends here, and asyncio would log a cancelled handler as an error.
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self.target)
        up = asyncio.ensure_future(self._pass_on(reader, far_writer, number))
        down = asyncio.ensure_future(self._pass_on(far_reader, writer, None))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            # A server may keep its half open for as long as it likes when a client has gone.
            await asyncio.wait((up, down), timeout=HALF_OPEN_SECONDS)
            for direction in (up, down):
                if direction.done():
                    direction.result()
        finally:
            up.cancel()
            down.cancel()
            far_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: int | None) -> None:
        while piece := await reader.read(65536):
            if client is None:
                self.bytes_down += len(piece)
            else:
                self.bytes_up += len(piece)
                self.seen_from_client(client, piece)
            if self.delay_seconds:
                await asyncio.sleep(self.delay_seconds)
            await self._flowing.wait()
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            with contextlib.suppress(OSError):
                writer.write_eof()


class SqsProxy(TcpProxy):
    """In front of an SQS server: also counts the requests by action, as in {"ReceiveMessage": 3}.

    A client must be given `endpoint_url`, and must not take the address from a queue's URL.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        super().__init__(target_port, target_host)
        self.calls: collections.Counter[str] = collections.Counter()
        """Requests so far, by action. A caller takes a copy, or clears it, between two measurements."""
        self._requests: dict[int, _Requests] = {}

    def seen_from_client(self, connection: int, piece: bytes) -> None:
        requests = self._requests.setdefault(connection, _Requests())
        self.calls.update(requests.feed(piece))


class _Requests:
    """Reads the actions off one connection's stream of HTTP/1.1 requests."""

    def __init__(self) -> None:
        self._buffer = b""
        self._body_left = 0

    def feed(self, piece: bytes) -> list[str]:
        actions = []
        self._buffer += piece
        while self._buffer:
            if self._body_left:
                taken = min(self._body_left, len(self._buffer))
                self._buffer = self._buffer[taken:]
                self._body_left -= taken
                continue
            head, end, rest = self._buffer.partition(b"\r\n\r\n")
            if not end:
                break
            lines = [line.partition(b":") for line in head.split(b"\r\n")[1:]]
            headers = {name.strip().lower(): value.strip() for name, _, value in lines}
            if b"transfer-encoding" in headers:
                raise NotImplementedError("a chunked request: no SQS client sends one")
            self._body_left = int(headers.get(b"content-length", b"0"))
            self._buffer = rest
            if target := headers.get(b"x-amz-target"):
                actions.append(target.rpartition(b".")[2].decode())
        return actions


def _bound(port: int) -> socket.socket:
    """A socket bound to the port of 127.0.0.1, beside others of this program."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound

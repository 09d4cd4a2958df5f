"""A TCP proxy on 127.0.0.1 that can be cut, stalled, slowed and counted: a network that fails when a test says so."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import ssl

from services.tcp import TcpServer

HALF_OPEN_SECONDS = 0.2
"""How long what is still on its way may take once one side has closed."""


class TcpProxy(TcpServer):
    """Passes on what comes to `port`.

    :param target_port: where to.
    :param target_host: default: this machine.
    :param tls: spoken with clients, not with the target.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1", *, tls: ssl.SSLContext | None = None) -> None:
        self.target = (target_host, target_port)
        super().__init__(tls)
        self.delay_seconds = 0.0
        """How much later each piece is passed on, in each direction."""
        self.bytes_up = 0
        """Bytes that came from clients so far."""
        self.bytes_down = 0
        """Bytes that came from the server so far."""
        self._flowing = asyncio.Event()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stall(self) -> None:
        """Go on accepting, but pass nothing in either direction, until `heal`."""
        self._call(self._stall())

    def heal(self) -> None:
        """Accept and pass on; what came while stalled is passed on first."""
        self._call(self._heal())

    def seen_from_client(self, connection: int, piece: bytes) -> None:
        """Called with each piece that a client sends; for subclasses that count requests."""

    async def _stall(self) -> None:
        self._flowing.clear()

    async def _heal(self) -> None:
        self._flowing.set()
        await super()._heal()

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

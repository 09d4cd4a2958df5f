"""A TCP server on 127.0.0.1, in a thread of its own, that can be away without losing its port."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from typing import Any, TypeVar

from services.started import Started

T = TypeVar("T")


class TcpServer(Started):
    """All methods may be called from any thread.

    :param tls: spoken with clients.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.opened = 0
        """Connections accepted so far."""
        self._tls = tls
        # Bound for as long as this lives, so that the port stays ours while nobody listens.
        self._keeper = _bound(0)
        self.port = int(self._keeper.getsockname()[1])
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        name = f"{type(self).__name__}-{self.port}"
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    @property
    def open(self) -> int:
        """Connections open now."""
        return len(self._connections)

    def start(self) -> None:
        self._thread.start()
        self.heal()

    def stop(self) -> None:
        """Cut, and give the port back; it can't be started again. Does nothing the second time."""
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

    def heal(self) -> None:
        """Accept again."""
        self._call(self._heal())

    @abstractmethod
    async def _serve(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve connection ``number``; OSError ends it."""

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

    async def _heal(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=_bound(self.port), ssl=self._tls)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        self.opened += 1
        try:
            await self._serve(self.opened, reader, writer)
        except (OSError, asyncio.CancelledError):
            # Cancelled only by `cut`; the task ends here, and asyncio would log a cancelled handler as an error.
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)


def _bound(port: int) -> socket.socket:
    """A socket bound to the port of 127.0.0.1, beside others of this program."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound

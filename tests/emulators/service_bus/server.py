"""The sockets, and the time that passes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.connection import ClientConnection
from tests.emulators.service_bus.tokens import Key

if TYPE_CHECKING:
    from tests.emulators.service_bus.websocket import WebSocketEntrance

HOST = "127.0.0.1"


class Server:
    """Serves until closed.

    :param port: of the AMQP socket; 0: a free one, `port` tells which.
    :param keys: shared access policies by name.
    """

    def __init__(self, port: int, keys: Mapping[str, Key]) -> None:
        self.port = port
        self.broker = Broker(keys)
        self._keeper: socket.socket | None = None
        self._listener: asyncio.Server | None = None
        self._entrances: list[WebSocketEntrance] = []
        self._timekeeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Raises OSError when the port is taken."""
        # Bound for as long as the server lives, so that the port stays ours while nobody listens.
        self._keeper = _bound(self.port)
        self.port = int(self._keeper.getsockname()[1])
        await self.listen()
        self._timekeeper = asyncio.create_task(self.broker.keep_time())

    async def close(self) -> None:
        await self.stop_listening()
        for connection in list(self.broker.connections):
            connection.abort()
        for entrance in self._entrances:
            await entrance.close()
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timekeeper
        if self._keeper is not None:
            self._keeper.close()

    async def open_websocket(self) -> int:
        """Serve AMQP over WebSocket, too; returns the port. It stays open when the other one is closed."""
        # Imported where it is wanted: hardly any test does.
        from tests.emulators.service_bus.websocket import WebSocketEntrance

        entrance = WebSocketEntrance(self.broker)
        self._entrances.append(entrance)
        return await entrance.open(HOST)

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ClientConnection(self.broker), sock=_bound(self.port))

    async def stop_listening(self) -> None:
        """Refuse new connections; open ones stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None


def _bound(port: int) -> socket.socket:
    # asyncio sends small frames at once, not 40 ms later, where the protocol is named.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((HOST, port))
    return bound

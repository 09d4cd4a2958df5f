"""The socket, and the time that passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.connection import ClientConnection
from tests.emulators.service_bus.tokens import Key

HOST = "127.0.0.1"


class Server:
    """Serves until closed.

    :param port: of the AMQP socket; 0: a free one, `port` tells which.
    :param keys: shared access policies by name.
    """

    def __init__(self, port: int, keys: Mapping[str, Key]) -> None:
        self.port = port
        self.broker = Broker(keys)
        self._listener: asyncio.Server | None = None
        self._timekeeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.listen()
        self._timekeeper = asyncio.create_task(self.broker.keep_time())

    async def close(self) -> None:
        await self.stop_listening()
        for connection in list(self.broker.connections):
            connection.abort()
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timekeeper

    async def listen(self) -> None:
        """Accept connections, on the same port as before."""
        if self._listener is not None:
            return
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: ClientConnection(self.broker), HOST, self.port)
        self.port = self._listener.sockets[0].getsockname()[1]

    async def stop_listening(self) -> None:
        """Refuse new connections; open ones stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

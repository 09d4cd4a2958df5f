"""A second entrance: AMQP inside WebSocket messages, which the SDK uses through proxies and where only HTTP passes."""

from __future__ import annotations

import asyncio

from aiohttp import WSMsgType, web

from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.connection import ClientConnection

PATH = "/$servicebus/websocket"
SUBPROTOCOL = "AMQPWSB10"


class WebSocketEntrance:
    """Serves on the bound socket until closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._runner: web.AppRunner | None = None

    async def open(self, host: str) -> int:
        """Listen on a free port; returns it."""
        application = web.Application()
        application.router.add_get(PATH, self._serve)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, 0)
        await site.start()
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        response = web.WebSocketResponse(protocols=[SUBPROTOCOL], max_msg_size=0)
        await response.prepare(request)
        transport = _Messages(request.transport)
        connection = ClientConnection(self._broker)
        connection.connection_made(transport)
        writing = asyncio.create_task(transport.send_to(response))
        try:
            async for message in response:
                if message.type is WSMsgType.BINARY:
                    connection.data_received(message.data)
        finally:
            writing.cancel()
            connection.connection_lost(None)
        return response


class _Messages(asyncio.Transport):
    """What a connection writes to, each piece a WebSocket message.

    :param below: the TCP connection, for cutting it.
    """

    def __init__(self, below: asyncio.Transport | None) -> None:
        super().__init__()
        self._below = below
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._pieces.put_nowait(bytes(data))

    def close(self) -> None:
        self._pieces.put_nowait(None)

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    async def send_to(self, response: web.WebSocketResponse) -> None:
        while (piece := await self._pieces.get()) is not None:
            await response.send_bytes(piece)
        await response.close()

"""Carries out what `Control` orders, in the emulator's own event loop."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Collection
from typing import Any

from tests.emulators.service_bus.broker import Broker
from tests.emulators.service_bus.links import Link
from tests.emulators.service_bus.messaging import Receiver, Sender
from tests.emulators.service_bus.queues import Queue
from tests.emulators.service_bus.refusals import (
    Refusal,
    entity_disabled,
    entity_not_found,
    idle_link,
    session_not_supported,
)
from tests.emulators.service_bus.server import HOST, Server
from tests.emulators.service_bus.sessions import SessionQueue
from tests.emulators.service_bus.stored import QueueOptions
from tests.emulators.service_bus.tokens import Key


class Orders:
    """A method for each order, with the order's name and arguments."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def carry_out(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises RuntimeError with the reason where it can't be done."""
        method = getattr(self, name, None)
        if name.startswith("_") or name == "carry_out" or method is None:
            raise RuntimeError(f"there is no order {name!r}")
        try:
            return await method(**arguments)
        except Refusal as refusal:
            raise RuntimeError(str(refusal)) from refusal

    async def create_queue(self, path: str, options: dict[str, Any]) -> None:
        self._broker.namespace.create_queue(path, QueueOptions(**options))

    async def create_topic(self, path: str) -> None:
        self._broker.namespace.create_topic(path)

    async def create_subscription(self, topic: str, name: str, options: dict[str, Any]) -> None:
        self._broker.namespace.create_subscription(topic, name, QueueOptions(**options))

    async def delete(self, path: str) -> None:
        gone = self._broker.namespace.delete(path)
        for link in self._links():
            if link.path in gone:
                link.connection.close_link(link, entity_not_found(link.path))

    async def disable(self, path: str) -> None:
        self._queue(path).disabled = True
        for link in self._links():
            if isinstance(link, Receiver) and link.path == path.lower():
                link.connection.close_link(link, entity_disabled(path))

    async def add_key(self, name: str, secret: str, rights: Collection[str]) -> None:
        self._broker.keys.keys[name] = Key(secret, frozenset(rights))

    async def add_bearer(self, token: str, rights: Collection[str], seconds: float) -> None:
        self._broker.keys.add_bearer(token, rights, seconds)

    async def drop_connections(self) -> int:
        connections = list(self._broker.connections)
        for connection in connections:
            connection.abort()
        return len(connections)

    async def go_down(self) -> None:
        await self._server.stop_listening()
        await self.drop_connections()

    async def come_up(self) -> None:
        await self._server.listen()

    async def open_websocket(self) -> int:
        return await self._server.open_websocket()

    async def detach_links(self, path: str | None) -> int:
        links = [link for link in self._links() if path is None or link.path == path.lower()]
        for link in links:
            link.connection.close_link(link, idle_link())
        return len(links)

    async def expire_locks(self, path: str | None) -> int:
        queues = list(self._broker.namespace.queues()) if path is None else [self._queue(path)]
        queues += [queue.dead_letters for queue in queues if path is None and queue.dead_letters is not None]
        return sum(queue.expire_locks() for queue in queues)

    async def lose_session(self, path: str, session_id: str) -> bool:
        queue = self._queue(path)
        if not isinstance(queue, SessionQueue):
            raise session_not_supported()
        return queue.lose_session(session_id)

    async def fail_settlements(self, count: int, condition: str) -> None:
        refusal = Refusal(condition, "Ordered to fail.", 503)
        self._broker.faults.settlements.extend([refusal] * count)

    async def lose_settlement_replies(self, count: int) -> None:
        self._broker.faults.lost_replies += count

    async def forget_faults(self) -> int:
        return self._broker.faults.forget()

    async def statistics(self) -> dict[str, int]:
        links = self._links()
        return {
            "connections": len(self._broker.connections),
            "senders": sum(1 for link in links if isinstance(link, Sender)),
            "receivers": sum(1 for link in links if isinstance(link, Receiver)),
            **dataclasses.asdict(self._broker.counters),
        }

    async def counts(self, path: str) -> dict[str, int]:
        return dataclasses.asdict(self._queue(path).counts())

    @property
    def _broker(self) -> Broker:
        return self._server.broker

    def _queue(self, path: str) -> Queue:
        return self._broker.namespace.source(path)

    def _links(self) -> list[Link]:
        connections = list(self._broker.connections)
        return [link for connection in connections for link in connection.links if isinstance(link, Sender | Receiver)]


async def listen_for_orders(orders: Orders, port: int) -> asyncio.Server:
    """Take orders from other processes on 127.0.0.1: a line of JSON each way, one order a connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        if line:
            asked = json.loads(line)
            try:
                answer = {"result": await orders.carry_out(asked["order"], asked["arguments"])}
            except Exception as error:
                answer = {"error": str(error)}
            writer.write(json.dumps(answer).encode() + b"\n")
        writer.close()

    return await asyncio.start_server(serve, HOST, port)

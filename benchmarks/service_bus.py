"""Service Bus through the whole machine, next to the Azure SDK alone (:mod:`benchmarks.side_by_side`).

``python -m benchmarks.service_bus``; it needs what `tests/service_bus` needs. The SDK's side receives a hundred and
completes each at once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from benchmarks.side_by_side import Progress, bodies, compare, options
from services.service_bus import ServiceBusServer

CONN_ID = "service_bus_benchmark"
MESSAGES = 5_000
BATCH = 100


class ServiceBus:
    """Queues, one for each reading."""

    name = "Service Bus"
    trigger_class = ServiceBusSharedStreamTrigger

    def __init__(self, server: ServiceBusServer) -> None:
        self._server = server
        self._numbers = itertools.count()

    async def fill(self, messages: int) -> str:
        queue = str(self._server.create_queue(f"benchmark-{next(self._numbers)}"))
        made = [ServiceBusMessage(body) for body in bodies(messages)]
        async with self._client() as client, client.get_queue_sender(queue) as sender:
            for start in range(0, messages, 500):
                await sender.send_messages(made[start : start + 500])
        return queue

    async def alone(self, place: str, progress: Progress) -> None:
        async with self._client() as client, client.get_queue_receiver(place) as receiver:
            while progress.settled < progress.messages:
                found = await receiver.receive_messages(max_message_count=BATCH, max_wait_time=5)
                progress.arrived += len(found)
                for message in found:
                    await receiver.complete_message(message)
                    progress.settled += 1

    def arguments(self, place: str) -> dict[str, Any]:
        return {"queue_name": place, "azure_service_bus_conn_id": CONN_ID}

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self._server.connection_string, retry_total=0)


def main() -> None:
    given = options(__doc__, MESSAGES)
    with tempfile.TemporaryDirectory() as folder, ServiceBusServer(Path(folder)) as server:
        os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = server.connection()
        print(server.taken)
        asyncio.run(compare(ServiceBus(server), given.rounds, given.messages))


if __name__ == "__main__":
    main()

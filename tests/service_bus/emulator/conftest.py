from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from azure.servicebus.aio import ServiceBusClient

from tests.emulators.service_bus import QueueOptions, ServiceBusEmulator

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def emulator() -> Iterator[ServiceBusEmulator]:
    with ServiceBusEmulator() as emulator:
        yield emulator


@pytest.fixture
async def client(emulator: ServiceBusEmulator) -> AsyncIterator[ServiceBusClient]:
    """The SDK as it is, but for its own retries, which would hide what the emulator answers."""
    async with ServiceBusClient.from_connection_string(emulator.connection_string(), retry_total=0) as client:
        yield client


@pytest.fixture
def make_queue(emulator: ServiceBusEmulator) -> Callable[..., str]:
    """Makes a queue with these `QueueOptions` and returns its name."""

    def make(**options: object) -> str:
        name = f"queue-{next(_numbers)}"
        emulator.create_queue(name, QueueOptions(**options))  # type: ignore[arg-type]
        return name

    return make


@pytest.fixture
def queue(make_queue: Callable[..., str]) -> str:
    """A queue without sessions, with long locks."""
    return make_queue()


@pytest.fixture
def session_queue(make_queue: Callable[..., str]) -> str:
    return make_queue(requires_session=True)

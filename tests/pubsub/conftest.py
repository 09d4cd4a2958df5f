"""Two Pub/Sub servers for all tests of this folder, each behind a network that can be cut: Google's emulator (or what
stands in for it), and the tests' own.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Protocol

import pytest

from services.proxy import TcpProxy
from services.pubsub import PubSubServer
from services.pubsub_subscription import PubSubSubscription
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.consumers import CONN_ID, Consumers
from tests.pubsub.observed import ObservedTrigger
from tests.pubsub.relay import Relay

NUMBERS = itertools.count()


class PubSub(Protocol):
    """A server, the network before it, and what it is asked to do."""

    project: str
    proxy: TcpProxy
    lease_seconds: int
    """The shortest that it takes."""

    def subscription(self, **settings: Any) -> PubSubSubscription:
        """A fresh one, made without the proxy; takes the arguments of `PubSubServer.create_subscription`."""

    def owed(self, subscription: PubSubSubscription) -> int:
        """Messages published to it and not acknowledged."""

    @property
    def open_streams(self) -> int:
        """Of all clients."""

    @property
    def calls(self) -> Counter[str]:
        """So far, by method, those of tests included."""

    def restart(self) -> None:
        """With its messages kept."""

    def go_away(self) -> None:
        """Until it comes back, with its messages kept."""

    def come_back(self) -> None: ...


class Googles:
    """Google's emulator, or where there is none the tests' own as a process."""

    lease_seconds = 10

    def __init__(self, server: PubSubServer, relay: Relay, proxy: TcpProxy) -> None:
        self.server = server
        self.project = server.project
        self.relay = relay
        self.proxy = proxy

    def subscription(self, **settings: Any) -> PubSubSubscription:
        name = f"orders-{next(NUMBERS)}"
        return made(f"127.0.0.1:{self.relay.port}", self.project, name, **settings)

    def owed(self, subscription: PubSubSubscription) -> int:
        return self.relay.owed(subscription.path)

    @property
    def open_streams(self) -> int:
        return self.relay.open_streams

    @property
    def calls(self) -> Counter[str]:
        return self.relay.calls

    def restart(self) -> None:
        self.go_away()
        self.come_back()

    def go_away(self) -> None:
        """This emulator forgets everything when it ends; to whoever is connected a cut looks the same."""
        self.proxy.cut()

    def come_back(self) -> None:
        self.proxy.heal()


class Own:
    """The tests' own emulator, in this process: order, retries, exactly-once results, faults."""

    project = "own"
    lease_seconds = 2

    def __init__(self, emulator: PubSubEmulator, proxy: TcpProxy) -> None:
        self.emulator = emulator
        self.proxy = proxy

    def subscription(self, **settings: Any) -> PubSubSubscription:
        return made(self.emulator.endpoint, self.project, f"orders-{next(NUMBERS)}", **settings)

    def owed(self, subscription: PubSubSubscription) -> int:
        return self.emulator.depth(subscription.path).total

    @property
    def open_streams(self) -> int:
        return self.emulator.open_streams

    @property
    def calls(self) -> Counter[str]:
        return self.emulator.calls

    def restart(self) -> None:
        self.go_away()
        self.come_back()

    def go_away(self) -> None:
        self.emulator.stop()

    def come_back(self) -> None:
        self.emulator.start()


def made(endpoint: str, project: str, name: str, *, dead_letters: bool = True, **settings: Any) -> PubSubSubscription:
    target = None
    if dead_letters:
        target = PubSubSubscription(endpoint, project, f"{name}-dead")
        target.create()
    subscription = PubSubSubscription(endpoint, project, name, target)
    subscription.create(**settings)
    return subscription


@pytest.fixture(scope="session")
def _googles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Googles]:
    with (
        PubSubServer(tmp_path_factory.mktemp("pubsub")) as server,
        Relay(server.endpoint) as relay,
        TcpProxy(relay.port) as proxy,
    ):
        print(f"\nPub/Sub tests run on {server.taken}")
        yield Googles(server, relay, proxy)


@pytest.fixture(scope="session")
def _own() -> Iterator[Own]:
    with PubSubEmulator(shortest_deadline_seconds=1) as emulator, TcpProxy(emulator.port) as proxy:
        yield Own(emulator, proxy)


@pytest.fixture
def googles(_googles: Googles, monkeypatch: pytest.MonkeyPatch) -> Googles:
    """Google's emulator; clients reach it through the proxy."""
    use(_googles, monkeypatch)
    return _googles


@pytest.fixture
def own(_own: Own, monkeypatch: pytest.MonkeyPatch) -> Iterator[Own]:
    """The tests' own; clients reach it through the proxy."""
    use(_own, monkeypatch)
    yield _own
    _own.emulator.faults.heal()


@pytest.fixture(params=["googles", "own"])
def pubsub(request: pytest.FixtureRequest) -> PubSub:
    """One after the other."""
    server: PubSub = request.getfixturevalue(request.param)
    return server


@pytest.fixture
async def consumers() -> AsyncIterator[Consumers]:
    """Makes adapters that are closed at the end."""
    made = Consumers()
    yield made
    for one in made.made:
        await one.close()


def use(server: PubSub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{server.proxy.port}")
    connection = f'{{"conn_type": "google_cloud_platform", "extra": {{"project": "{server.project}"}}}}'
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection)
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")
    server.proxy.heal()


def trigger(server: PubSub, subscription: PubSubSubscription, **arguments: Any) -> ObservedTrigger:
    """A trigger on a subscription."""
    return ObservedTrigger(server.project, subscription.name, gcp_conn_id=CONN_ID, **arguments)


def is_empty(server: PubSub, subscription: PubSubSubscription) -> Callable[[], bool]:
    return lambda: server.owed(subscription) == 0


async def send(subscription: PubSubSubscription, bodies: list[str], **more: Any) -> list[str]:
    return await asyncio.to_thread(subscription.send, bodies, **more)


__all__ = ["CONN_ID", "Googles", "Own", "PubSub", "is_empty", "send", "trigger"]

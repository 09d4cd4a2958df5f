"""Adapters that tests drive by themselves, without the machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from airflow_provider_sharedstream.brokers.pubsub.held import Held
from airflow_provider_sharedstream.stream.delivery import Delivery
from services.pubsub_subscription import PubSubSubscription
from tests.airflow_loop import Watcher
from tests.conformance.suite import numbered, receive_all

if TYPE_CHECKING:
    from tests.pubsub.conftest import PubSub

CONN_ID = "google_tests"


class Consumers:
    """Makes adapters, to be closed at the end."""

    def __init__(self) -> None:
        self.made: list[PubSubConsumer] = []

    def __call__(self, server: PubSub, subscription: PubSubSubscription | str, **arguments: Any) -> PubSubConsumer:
        name = subscription if isinstance(subscription, str) else subscription.name
        given = {
            "project_id": server.project,
            "ack_deadline_seconds": server.lease_seconds,
            "gcp_conn_id": CONN_ID,
            **arguments,
        }
        self.made.append(PubSubConsumer(subscription=name, **given))
        return self.made[-1]


async def received(consumer: PubSubConsumer, count: int) -> list[Delivery]:
    """Connect, and receive so many."""
    await consumer.connect()
    return await receive_all(consumer, count)


def held(consumer: PubSubConsumer) -> list[Held]:
    """What came and nobody has asked for yet."""
    return [] if consumer._stream is None else list(consumer._stream._held._line)


def texts(count: int, start: int = 0, **more: Any) -> list[str]:
    """Bodies."""
    return [body.decode() for body in numbered(count, start, **more)]


def numbers(watcher: Watcher) -> list[int]:
    """What `texts` numbered, as stored."""
    return [body["n"] for body in watcher.bodies]

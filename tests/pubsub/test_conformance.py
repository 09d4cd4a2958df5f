"""Pub/Sub, held to the definition of an adapter: on Google's emulator and on the tests' own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubConsumer
from services.pubsub_subscription import PubSubSubscription
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance
from tests.pubsub.conftest import CONN_ID, Googles, Own, PubSub


class PubSubSource:
    def __init__(self, server: PubSub, subscription: PubSubSubscription) -> None:
        self.server = server
        self.subscription = subscription
        self._taken: list[DeadLetter] = []

    def consumer(self) -> PubSubConsumer:
        dead_letters = self.subscription.dead_letters
        return PubSubConsumer(
            self.server.project,
            self.subscription.name,
            gcp_conn_id=CONN_ID,
            dead_letter_topic=None if dead_letters is None else dead_letters.name,
            ack_deadline_seconds=self.server.lease_seconds,
        )

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        await asyncio.to_thread(self.subscription.send, bodies, attributes=headers, ordering_key=key or "")

    async def pending(self) -> int:
        return self.server.owed(self.subscription)

    async def dead_letters(self) -> Sequence[DeadLetter]:
        assert self.subscription.dead_letters is not None
        for taken in await asyncio.to_thread(self.subscription.dead_letters.take):
            self._taken.append(DeadLetter(taken.message.data, dict(taken.message.attributes)))
        return self._taken


class PubSubHarness:
    def __init__(self, server: PubSub, gaps: Mapping[str, str]) -> None:
        self.server = server
        self.gaps = gaps
        self.lease_seconds = float(server.lease_seconds)

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> PubSubSource:
        subscription = await asyncio.to_thread(
            lambda: self.server.subscription(ordered=ordered, dead_letters=dead_letters)
        )
        return PubSubSource(self.server, subscription)

    def missing(self) -> PubSubConsumer:
        return PubSubConsumer(self.server.project, "no-such-subscription", gcp_conn_id=CONN_ID)

    async def restart(self) -> None:
        await asyncio.to_thread(self.server.restart)

    async def cut(self) -> None:
        await asyncio.to_thread(self.server.proxy.cut)

    async def heal(self) -> None:
        await asyncio.to_thread(self.server.proxy.heal)


class TestOnGooglesEmulator(Conformance):
    @pytest.fixture
    def harness(self, googles: Googles) -> PubSubHarness:
        return PubSubHarness(googles, {})


class TestOnOurEmulator(Conformance):
    @pytest.fixture
    def harness(self, own: Own) -> PubSubHarness:
        return PubSubHarness(own, {})

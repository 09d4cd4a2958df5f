"""Three brokers that come and go, while records flow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.kafka import KafkaServer
from tests.airflow_loop import Watcher, repeated, triggerer, until
from tests.kafka.conftest import Kafka, Topic, connect, other_member
from tests.kafka.test_stream import emptied, numbers

pytestmark = pytest.mark.slow

# A member outlasts the time that a cluster needs to see that a broker has died: four seconds.
SESSION = {"session.timeout.ms": "12000", "heartbeat.interval.ms": "500"}


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with KafkaServer(tmp_path_factory.mktemp("kafka-cluster"), nodes=3) as server:
        kafka = Kafka(server)
        kafka.conn_id = "kafka_cluster"
        connect(server, kafka.conn_id, SESSION)
        yield kafka


class Flow:
    """Sends for as long as it runs, and notes what was written."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.sent = 0
        self.unsure: set[int] = set()
        self.running = True

    async def run(self) -> None:
        while self.running:
            some = range(self.sent, self.sent + 20)
            self.sent += 20
            try:
                await self.topic.send_json([{"n": n} for n in some])
            except Exception:
                # While a broker goes nobody knows whether it was written.
                self.unsure.update(some)
            await asyncio.sleep(0.05)


@asynccontextmanager
async def flowing(topic: Topic, watcher: Watcher) -> AsyncIterator[Flow]:
    flow = Flow(topic)
    task = asyncio.create_task(flow.run())
    await until(lambda: len(watcher.ids) > 100, "a flow")
    try:
        yield flow
        before = len(watcher.ids)
        await until(lambda: len(watcher.ids) > before + 200, "the flow goes on", 120)
    finally:
        flow.running = False
        await task


def all_but_the_unsure(flow: Flow, found: list[int]) -> None:
    lost = set(range(flow.sent)) - flow.unsure - set(found)
    assert not lost, f"lost {len(lost)}: {sorted(lost)[:10]}"


async def led_by(kafka: Kafka, topic: Topic, partition: int = 0) -> int:
    async with kafka.server.admin() as admin:
        return await admin.leader(topic.name, partition)


async def coordinated_by(kafka: Kafka, topic: Topic) -> int:
    async with kafka.server.admin() as admin:
        return await admin.coordinator(topic.group)


async def test_a_leader_that_moves(cluster: Kafka) -> None:
    topic = await cluster.topic(3)
    async with triggerer(confirm_seconds=0.2) as running:
        watcher = running.start(topic.trigger(batch_size=20))
        async with flowing(topic, watcher) as flow:
            for partition in range(3):
                to = (await led_by(cluster, topic, partition) + 1) % 3
                await asyncio.to_thread(cluster.server.move_leader, topic.name, partition, to)
                assert await led_by(cluster, topic, partition) == to
        await until(emptied(topic), "everything committed")
        all_but_the_unsure(flow, numbers(watcher))
        assert repeated(watcher.ids) == []
        assert not watcher.restarts


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("who", ["a leader", "the coordinator"])
async def test_a_broker_goes(cluster: Kafka, who: str, how: str) -> None:
    topic = await cluster.topic(3)
    server = cluster.server
    async with triggerer(confirm_seconds=0.2) as running:
        watcher = running.start(topic.trigger(batch_size=20))
        async with flowing(topic, watcher) as flow:
            node = await (led_by(cluster, topic) if who == "a leader" else coordinated_by(cluster, topic))
            await asyncio.to_thread(server.stop_node if how == "stopped" else server.kill_node, node)
            before = len(watcher.ids)
            await until(lambda: len(watcher.ids) > before + 200, "the flow goes on without it", 120)
            if who == "the coordinator":
                assert await coordinated_by(cluster, topic) != node
            await asyncio.to_thread(server.start_node, node)
        await until(emptied(topic), "everything committed", 120)
        all_but_the_unsure(flow, numbers(watcher))
        # Nothing but what was in flight, and only where the membership didn't outlast it.
        assert len(repeated(watcher.ids)) <= 1000
        assert not watcher.restarts


async def test_a_second_member_comes_and_goes_while_the_coordinator_moves(cluster: Kafka) -> None:
    topic = await cluster.topic(3)
    theirs: list[int] = []
    async with triggerer(confirm_seconds=0.2) as running:
        watcher = running.start(topic.trigger(batch_size=20))
        async with flowing(topic, watcher) as flow:
            node = await coordinated_by(cluster, topic)
            going = asyncio.create_task(asyncio.to_thread(cluster.server.stop_node, node))
            for _ in range(3):
                theirs += await other_member(topic)
            await going
            await asyncio.to_thread(cluster.server.start_node, node)
        await until(emptied(topic), "everything committed", 120)
        all_but_the_unsure(flow, numbers(watcher) + theirs)
        assert not watcher.restarts


async def test_all_brokers_go_for_longer_than_a_session(
    cluster: Kafka, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.EVERY_SECONDS", 1.0)
    monkeypatch.setattr("airflow_provider_sharedstream.brokers.kafka.pulse.SILENCE_SECONDS", 5.0)
    topic = await cluster.topic(3)
    async with triggerer(confirm_seconds=0.2) as running:
        watcher = running.start(topic.trigger(batch_size=20))
        await topic.send_json([{"n": n} for n in range(100)])
        await until(lambda: len(watcher.ids) >= 100, "the first hundred")
        await until(emptied(topic), "everything committed")
        caplog.clear()
        await asyncio.to_thread(cluster.server.kill)
        await asyncio.sleep(40)
        ours = [r for r in caplog.records if r.name.startswith("airflow_provider_sharedstream")]
        said = [record.getMessage() for record in ours]
        assert any("no broker has answered for" in text for text in said), said
        assert any("no broker can be reached" in text for text in said), said
        # aiokafka alone says something ten times a second.
        assert len(caplog.records) < 200, len(caplog.records)
        await asyncio.to_thread(cluster.server.start)
        await topic.send_json([{"n": n} for n in range(100, 200)])
        await until(lambda: set(numbers(watcher)) == set(range(200)), "the rest", 120)
        await until(emptied(topic), "everything committed", 120)
        assert not watcher.restarts

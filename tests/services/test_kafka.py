from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)

from services import kafka
from services.kafka import BOOTSTRAP, USERS, KafkaServer, unsecured_token
from services.kafka_certificates import Certificates
from services.kafka_cluster import answers
from services.process import DEMAND_REAL, ServiceUnavailable
from tests.airflow_loop import until

MEMBER = """
import asyncio, sys
from aiokafka import AIOKafkaConsumer

async def main(bootstrap, topic, group):
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, session_timeout_ms=2000, heartbeat_interval_ms=500
    ) as consumer:
        while True:
            print(len(consumer.assignment()), flush=True)
            await consumer.getmany(timeout_ms=200)

asyncio.run(main(*sys.argv[1:]))
"""


class Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        self.text = text

    async def token(self) -> str:
        return self.text


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka"), secure=True) as server:
        yield server


@pytest.fixture(name="cluster", scope="module")
def fixture_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("cluster"), nodes=3) as server:
        yield server


def tls(server: KafkaServer, *, user: str | None = None, ca_file: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file or server.ca_file)
    if user:
        issued = server.issue(user)
        context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context


def access(server: KafkaServer, way: str, *, user: str = "alice", secret: str | None = None) -> dict[str, Any]:
    """What an aiokafka client needs to come in by a listener and, there, a mechanism."""
    if way == "PLAINTEXT":
        return {"bootstrap_servers": server.bootstrap}
    if way == "SSL":
        context = tls(server, user=user)
        return {"bootstrap_servers": server.ssl_bootstrap, "security_protocol": "SSL", "ssl_context": context}
    sasl = {
        "bootstrap_servers": server.secure_bootstrap,
        "security_protocol": "SASL_SSL",
        "ssl_context": tls(server),
        "sasl_mechanism": way,
    }
    if way == "OAUTHBEARER":
        return sasl | {"sasl_oauth_token_provider": Token(secret or unsecured_token(user))}
    return sasl | {"sasl_plain_username": user, "sasl_plain_password": secret or USERS[user]}


def member(topic: str, group: str, client: dict[str, Any]) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        topic,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=2000,
        heartbeat_interval_ms=500,
        retry_backoff_ms=50,
        **client,
    )


async def values(consumer: AIOKafkaConsumer, number: int) -> list[bytes | None]:
    return [(await asyncio.wait_for(consumer.getone(), 60)).value for _ in range(number)]


def test_it_says_what_was_taken(server: KafkaServer) -> None:
    assert server.taken.startswith("local process: Apache Kafka 4.")
    assert server.real


@pytest.mark.parametrize("way", ["PLAINTEXT", "SSL", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
async def test_records_pass_by_every_listener(server: KafkaServer, way: str) -> None:
    topic = f"by-{way}"
    async with server.admin() as admin:
        await admin.create_topic(topic)
    async with AIOKafkaProducer(**access(server, way)) as producer:
        for value in (b"one", b"two"):
            await producer.send_and_wait(topic, value)
    async with member(topic, f"group-{way}", access(server, way)) as consumer:
        assert await values(consumer, 2) == [b"one", b"two"]


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_refused(server: KafkaServer, way: str) -> None:
    producer = AIOKafkaProducer(**access(server, way, secret="wrong"))
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()


async def test_an_expired_token_is_refused(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("barred")
    expired = unsecured_token("alice", valid_seconds=-60)
    consumer = member("barred", "barred", access(server, "OAUTHBEARER", secret=expired) | {"request_timeout_ms": 1500})
    # aiokafka overlooks the refusal and the end of the connection, and knows no topic afterwards.
    with pytest.raises(UnknownTopicOrPartitionError):
        await consumer.start()
    await consumer.stop()


async def test_tls_is_mutual_and_trusts_one_authority(server: KafkaServer, tmp_path: Path) -> None:
    stranger = tls(server, ca_file=Certificates(tmp_path).ca_file)
    for context in (tls(server), stranger):
        settings = access(server, "SSL") | {"ssl_context": context}
        producer = AIOKafkaProducer(**settings)
        with pytest.raises(KafkaConnectionError):
            await producer.start()
        await producer.stop()


async def test_a_group_and_a_topic_are_open_to_whom_they_were_permitted(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("guarded")
        await admin.send("guarded", [b"secret"])
    server.permit("bob", group="closed")
    alice = member("guarded", "closed", access(server, "PLAIN"))
    with pytest.raises(GroupAuthorizationFailedError):
        await alice.start()
    await alice.stop()
    async with member("guarded", "closed", access(server, "PLAIN", user="bob")) as bob:
        assert await values(bob, 1) == [b"secret"]

    server.permit("bob", topic="guarded")
    server.permit("alice", group="closed")
    alice = member("guarded", "closed", access(server, "SSL"))
    with pytest.raises(TopicAuthorizationFailedError):
        await alice.start()
    await alice.stop()
    server.permit("alice", topic="guarded")
    async with member("guarded", "closed", access(server, "SSL")) as alice:
        assert await values(alice, 1) == [b"secret"]


async def test_a_killed_member_is_evicted_and_its_partitions_go_to_the_other(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("shared", 4)
        async with member("shared", "team", access(server, "PLAINTEXT")) as consumer:
            command = [sys.executable, "-c", MEMBER, server.bootstrap, "shared", "team"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
                while len(await admin.members("team")) < 2 or len(consumer.assignment()) != 2:
                    await consumer.getmany(timeout_ms=100)
                other.kill()
            while len(consumer.assignment()) < 4:
                await consumer.getmany(timeout_ms=100)
            assert len(await admin.members("team")) == 1


async def test_records_tombstones_and_commits_are_counted(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("counted", 2, settings={"cleanup.policy": "compact"})
        assert await admin.send("counted", [b"a", None], key=b"k", partition=1) == [TopicPartition("counted", 1)] * 2
        assert await admin.ends("counted") == {TopicPartition("counted", 0): 0, TopicPartition("counted", 1): 2}
        async with member("counted", "counter", access(server, "PLAINTEXT")) as consumer:
            assert await values(consumer, 2) == [b"a", None]
            assert [each.client_id for each in await admin.members("counter")] == [consumer._client._client_id]
            await consumer.commit({TopicPartition("counted", 1): 1})
        assert await admin.committed("counter") == {TopicPartition("counted", 1): 1}
        with pytest.raises(TopicAlreadyExistsError):
            await admin.create_topic("counted")
        await admin.delete_topic("counted")
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.leader("counted")


async def test_a_topic_is_filled_in_bulk(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("bulk", 3)
        await asyncio.to_thread(server.fill, "bulk", 9000, ["x" * 200])
        assert sum((await admin.ends("bulk")).values()) == 9000
    async with member("bulk", "bulk", access(server, "PLAINTEXT")) as consumer:
        assert {len(value or b"") for value in await values(consumer, 9000)} == {200}


async def test_a_restart_and_a_kill_keep_topics_records_and_commits(server: KafkaServer) -> None:
    async with server.admin() as admin:
        await admin.create_topic("kept")
        await admin.send("kept", [b"0", b"1", b"2"])
        async with member("kept", "keeper", access(server, "PLAINTEXT")) as consumer:
            await consumer.commit({TopicPartition("kept", 0): 1})
    bootstrap = server.bootstrap
    server.restart()
    server.kill()
    server.start()
    assert server.bootstrap == bootstrap
    async with member("kept", "keeper", access(server, "SCRAM-SHA-256")) as consumer:
        assert await values(consumer, 2) == [b"1", b"2"]


async def test_a_topic_comes_into_being_only_where_that_was_asked_for(server: KafkaServer, tmp_path: Path) -> None:
    async with server.admin() as admin:
        with pytest.raises(UnknownTopicOrPartitionError):
            await admin.leader("nowhere")
    settings = {"num.partitions": "3"}
    with KafkaServer(tmp_path, auto_create_topics=True, settings=settings) as generous:
        async with AIOKafkaProducer(bootstrap_servers=generous.bootstrap) as producer:
            await producer.send_and_wait("anywhere", b"x")
        async with generous.admin() as admin:
            assert sum((await admin.ends("anywhere")).values()) == 1
            assert len(await admin.ends("anywhere")) == 3


@pytest.mark.slow
async def test_a_leader_moves_by_election_and_when_its_node_dies(cluster: KafkaServer) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic("led", 3)
        for to in (1, 2):
            await asyncio.to_thread(cluster.move_leader, "led", 0, to)
            assert await admin.leader("led") == to
        await admin.send("led", [b"before"], partition=0)
        cluster.kill_node(2)

        async def led_by_another() -> bool:
            return await admin.leader("led") != 2

        await until(led_by_another, "another leader")
        await admin.send("led", [b"between"], partition=0)
        await asyncio.to_thread(cluster.start_node, 2)
        await asyncio.to_thread(cluster.move_leader, "led", 0, 2)
        async with member("led", "readers", access(cluster, "PLAINTEXT")) as consumer:
            assert await values(consumer, 2) == [b"before", b"between"]


@pytest.mark.slow
async def test_a_group_goes_on_when_its_coordinator_moves(cluster: KafkaServer) -> None:
    async with cluster.admin() as admin:
        await admin.create_topic("followed")
        await admin.send("followed", [b"0", b"1"])
        async with member("followed", "followers", access(cluster, "PLAINTEXT")) as consumer:
            assert await values(consumer, 1) == [b"0"]
            await consumer.commit({TopicPartition("followed", 0): 1})
            first = await admin.coordinator("followers")
            await asyncio.to_thread(cluster.stop_node, first)
            assert await admin.coordinator("followers") != first
            assert await values(consumer, 1) == [b"1"]
            await consumer.commit({TopicPartition("followed", 0): 2})
        assert await admin.committed("followers") == {TopicPartition("followed", 0): 2}
        await asyncio.to_thread(cluster.start_node, first)


async def test_without_java_a_stand_in_serves_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> None:
        raise ServiceUnavailable("there is no java")

    monkeypatch.delenv(BOOTSTRAP, raising=False)
    monkeypatch.setattr(kafka, "docker_answers", lambda: False)
    monkeypatch.setattr(kafka, "install", nothing)
    monkeypatch.setenv(DEMAND_REAL, "1")
    refused = KafkaServer(tmp_path / "refused")
    with pytest.raises(ServiceUnavailable, match="stand-in"):
        refused.start()
    refused.stop()
    with pytest.raises(ServiceUnavailable, match="there is no java"):
        KafkaServer(tmp_path, nodes=3).start()
    monkeypatch.delenv(DEMAND_REAL)
    with KafkaServer(tmp_path / "taken") as server:
        assert not server.real
        assert "there is no java" in server.taken
        async with server.admin() as admin:
            await admin.create_topic("light")
            await admin.send("light", [b"x"])
        server.restart()
        at = {"bootstrap_servers": server.bootstrap, "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer("light", group_id="light", **at) as consumer:
            assert await values(consumer, 1) == [b"x"]


def test_a_broker_given_by_address_is_used_as_it_is(
    server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BOOTSTRAP, server.bootstrap)
    with KafkaServer(tmp_path) as given:
        assert given.bootstrap == server.bootstrap
        with pytest.raises(ServiceUnavailable, match="can't be restarted"):
            given.restart()
    assert answers(int(server.bootstrap.rpartition(":")[2])), "what was given is not ours to stop"

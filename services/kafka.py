"""A Kafka broker: one given by address, one in Docker, Apache Kafka as local processes, or a small stand-in.

Where the stand-in, noida-db 0.2.3, differs, so that `real` is False: a killed group member is never evicted, SASL takes
any password, there is no TLS, a session timeout below 6 s is refused, and it is one node. It serves the demo where
there is neither Java nor Docker.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from services.docker import Container, docker_answers
from services.kafka_admin import KafkaAdmin
from services.kafka_certificates import Certificates, Issued
from services.kafka_cluster import USERS, KafkaCluster, answers, archive_classes
from services.kafka_jars import install, kafka_version
from services.process import LocalProcess, Service, ServiceUnavailable, free_port, require_real
from services.started import Started

BOOTSTRAP = "SHAREDSTREAM_KAFKA_BOOTSTRAP"
"""A broker without TLS or SASL to use as it is, 127.0.0.1:9092 for example."""

__all__ = ["BOOTSTRAP", "USERS", "KafkaServer", "unsecured_token"]


class KafkaServer(Started):
    """Starts what can be had, in this order: $SHAREDSTREAM_KAFKA_BOOTSTRAP, Docker, Apache Kafka on Java, noida-db.

    Only Apache Kafka on Java has several nodes, TLS and SASL, or settings of its own, and so is taken where one of
    these is asked for. Topics, records and groups survive `restart`, and except in Docker `stop` and `kill` too.

    :param folder: takes data and logs.
    :param nodes: brokers, each a controller too; ids 0, 1, ... With three, topics have three replicas, and two of them
        must have a record before it counts as written.
    :param secure: adds `secure_bootstrap` and `ssl_bootstrap`, where `permit` decides who may do what.
    :param auto_create_topics: whether a topic comes into being when somebody asks for it.
    :param settings: broker settings, as in server.properties.
    :param heap_mb: Java's heap for each node; the process takes some 150 MB more.
    """

    name = "kafka"

    def __init__(
        self,
        folder: Path,
        *,
        nodes: int = 1,
        secure: bool = False,
        auto_create_topics: bool = False,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 256,
    ) -> None:
        self.folder = folder
        self.taken = ""
        self.real = True
        self.bootstrap = ""
        self._nodes = nodes
        self._secure = secure
        self._heap_mb = heap_mb
        self._plain = nodes == 1 and not secure and not settings
        self._settings = {"auto.create.topics.enable": str(auto_create_topics).lower(), **(settings or {})}
        self._certificates: Certificates | None = None
        self._server: KafkaCluster | Container | LocalProcess | None = None
        if self._plain and (address := os.environ.get(BOOTSTRAP)):
            self.bootstrap = address
            self.taken = f"environment address {address}"

    def start(self) -> None:
        """Raises ServiceUnavailable when nothing can serve it, RuntimeError when what was started isn't ready."""
        if self._server is not None:
            self._server.start()
        elif not self.bootstrap:
            self._choose()
        require_real(self)

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()

    def restart(self) -> None:
        """Same ports, same data; raises ServiceUnavailable for a server given by address."""
        server = self._ours("restarted")
        if isinstance(server, Container):
            server.restart()
        else:
            server.stop()
            server.start()

    def kill(self) -> None:
        """KILL -9 for every node; raises ServiceUnavailable where there is no local process."""
        server = self._ours("killed")
        if isinstance(server, Container):
            raise ServiceUnavailable(f"{self.taken} can't be killed, only stopped")
        server.kill()

    def start_node(self, node: int) -> None:
        """Start one that was stopped or killed, and wait until it answers.

        One that was killed is let in again when the others have given it up, four seconds after its end.
        """
        self._cluster().nodes[node].process.start()

    def stop_node(self, node: int) -> None:
        """An orderly end: the node gives its partitions and groups away first."""
        self._cluster().nodes[node].process.stop()

    def kill_node(self, node: int) -> None:
        """KILL -9; the others take its partitions and groups over after four seconds."""
        self._cluster().nodes[node].process.kill()

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Let node `to` lead the partition, by an election; `topic` has a replica on every node."""
        self._cluster().move_leader(topic, partition, to)

    def fill(self, topic: str, records: int, values: Sequence[str]) -> None:
        """Write records without keys, each with one of `values`, over the partitions: some 150,000 a second."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write("\n".join(values))
            file.flush()
            amount = ["--num-records", str(records), "--payload-file", file.name, "--throughput", "-1"]
            self._cluster().tool("ProducerPerformance", "--topic", topic, *amount)

    def permit(self, user: str, *, topic: str | None = None, group: str | None = None) -> None:
        """Let `user` do everything with the topic or the group, and from then on only those who were permitted to.

        Before its first `permit` a topic or group is open to all. `user` is one of USERS, the name in a client's
        certificate, or a token's subject. Nothing binds those who come by `bootstrap`.
        """
        of = ["--topic", topic] if topic is not None else ["--group", str(group)]
        self._cluster().tool("AclCommand", "--add", "--allow-principal", f"User:{user}", "--operation", "All", *of)

    def set_back(self, group: str, topic: str) -> None:
        """Let the group, which has no member just now, read all of the topic again, as an operator would."""
        how = ["--group", group, "--topic", topic, "--reset-offsets", "--to-earliest", "--execute"]
        self._cluster().tool("consumer.group.ConsumerGroupCommand", *how)

    @property
    def secure_bootstrap(self) -> str:
        """SASL_SSL: PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 for USERS, OAUTHBEARER with an `unsecured_token`."""
        return self._cluster().bootstrap("SASL_SSL")

    @property
    def ssl_bootstrap(self) -> str:
        """SSL: a client shows a certificate that `issue` gave it."""
        return self._cluster().bootstrap("SSL")

    @property
    def ca_file(self) -> Path:
        """The authority that signed the brokers' certificates."""
        return self._authority().ca_file

    def issue(self, user: str, *, password: str | None = None) -> Issued:
        """A client's certificate, which makes it `user`, and its key, encrypted when there is a password."""
        return self._authority().issue(user, password=password)

    def connection(self, extra: Mapping[str, str] | None = None) -> str:
        """An Airflow connection as JSON, for AIRFLOW_CONN_KAFKA_DEFAULT; `extra` goes on top."""
        return json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": self.bootstrap, **(extra or {})}})

    def admin(self) -> KafkaAdmin:
        """Topics, groups and records, for `async with`."""
        return KafkaAdmin(self.bootstrap)

    def _choose(self) -> None:
        why_not: list[str] = []
        takers = [self._take_docker, self._take_java, self._take_stand_in] if self._plain else [self._take_java]
        for take in takers:
            try:
                take()
            except ServiceUnavailable as error:
                why_not.append(str(error))
            else:
                # A stand-in says why it stands in.
                self.taken += "".join(f" ({reason})" for reason in why_not)
                return
        raise ServiceUnavailable("no Kafka: " + "; ".join(why_not))

    def _take_docker(self) -> None:
        if not docker_answers():
            raise ServiceUnavailable("Docker does not answer")
        image = f"apache/kafka:{kafka_version()}"
        environment = {
            "KAFKA_NODE_ID": "0",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "0@localhost:9094",
            "KAFKA_LISTENERS": "PLAINTEXT://:9092,INTERNAL://localhost:9093,CONTROLLER://localhost:9094",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "INTERNAL",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": "500",
            **{f"KAFKA_{key.upper().replace('.', '_')}": value for key, value in self._settings.items()},
        }
        container = Container(image, 9092, env=environment, ready=answers)
        # The port is chosen there; clients come back by the address that the broker gives them.
        internal, outside = "INTERNAL://localhost:9093", f"PLAINTEXT://127.0.0.1:{container.port}"
        environment["KAFKA_ADVERTISED_LISTENERS"] = f"{outside},{internal}"
        container.start()
        self._server = container
        self.bootstrap = f"127.0.0.1:{container.port}"
        self.taken = f"Docker image {image}"

    def _take_java(self) -> None:
        kafka = install()
        archive_classes(kafka)
        if self._secure:
            self._certificates = Certificates(self.folder / "certificates")
        cluster = KafkaCluster(
            kafka,
            self.folder,
            nodes=self._nodes,
            certificates=self._certificates,
            settings=self._settings,
            heap_mb=self._heap_mb,
        )
        self._server = cluster
        self.bootstrap = cluster.bootstrap()
        number = "one node" if self._nodes == 1 else f"{self._nodes} nodes"
        self.taken = f"local process: Apache Kafka {kafka_version()}, {number}"
        cluster.start()

    def _take_stand_in(self) -> None:
        program = Path(sys.executable).with_name("noida-db")
        if not program.exists():
            raise ServiceUnavailable(f"there is no {program}: pip install noida-db")
        port = free_port()
        options = ["--only", "kafka", "--kafka-port", str(port), "--data-dir", str(self.folder / "noida-db")]
        self._server = LocalProcess(
            "noida-db",
            [str(program), "start", *options],
            log_file=self.folder / "noida-db.log",
            ready=lambda: answers(port),
        )
        self.real = False
        self.bootstrap = f"127.0.0.1:{port}"
        self.taken = "local process: PyPI noida-db, a stand-in for Kafka"
        self._server.start()

    def _ours(self, what: str) -> KafkaCluster | Container | LocalProcess:
        if self._server is None:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} can't be {what}")
        return self._server

    def _cluster(self) -> KafkaCluster:
        if not isinstance(self._server, KafkaCluster):
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} has no nodes of ours")
        return self._server

    def _authority(self) -> Certificates:
        if self._certificates is None:
            raise ServiceUnavailable("only KafkaServer(..., secure=True), once started, has certificates")
        return self._certificates


def unsecured_token(user: str, *, valid_seconds: float = 3600.0) -> str:
    """A token for OAUTHBEARER that nobody signed, as the broker's SASL_SSL listener takes them."""
    now = time.time()
    parts = [{"alg": "none"}, {"sub": user, "iat": now, "exp": now + valid_seconds}]
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


if TYPE_CHECKING:
    _: type[Service] = KafkaServer

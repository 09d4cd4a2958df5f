"""Apache Kafka as local processes: one node, or several that lose and regain each other."""

from __future__ import annotations

import base64
import fcntl
import json
import socket
import struct
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.kafka_certificates import Certificates
from services.kafka_jars import CACHE, Kafka
from services.process import LocalProcess, free_port, wait_until

USERS = {"alice": "alice-secret", "bob": "bob-secret"}
"""Who may log in with SASL, and the passwords."""


class KafkaNode:
    """One process, broker and controller at once.

    :param number: its id in the cluster.
    :param settings: the whole of its server.properties.
    :param java_options: for this node alone.
    """

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        number: int,
        *,
        port: int,
        settings: Mapping[str, str],
        heap_mb: int,
        java_options: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.number = number
        self._kafka = kafka
        self._settings = {**settings, "log.dirs": str(folder / "data")}
        self._properties = folder / "server.properties"
        self._heap_mb = heap_mb
        self.process = LocalProcess(
            f"kafka-{number}",
            kafka.command("kafka.Kafka", str(self._properties), heap_mb=heap_mb, options=java_options),
            log_file=folder / "kafka.log",
            # A broker binds its port early and answers once the controller has admitted it.
            ready=lambda: answers(port),
        )

    def prepare(self, cluster_id: str, arguments: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Write the settings and begin to format an empty data folder; the caller waits for what is returned."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        if (self.folder / "data" / "meta.properties").exists():
            return None
        # An id may begin with a dash.
        tool = ["format", f"--cluster-id={cluster_id}", "--config", str(self._properties), *arguments]
        with self.process.log_file.open("ab") as log:
            command = self._kafka.command("kafka.tools.StorageTool", *tool, heap_mb=self._heap_mb)
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


class KafkaCluster:
    """All nodes of one cluster; data, ports and node ids stay the same from start to start.

    :param kafka: the release.
    :param folder: a folder for each node, with its data and its log.
    :param nodes: how many; their ids are 0, 1, ...
    :param certificates: adds the listeners SASL_SSL and SSL, and access control, when given.
    :param settings: broker settings on top of those below.
    :param heap_mb: Java's heap for each node.
    """

    def __init__(
        self,
        kafka: Kafka,
        folder: Path,
        *,
        nodes: int = 1,
        certificates: Certificates | None = None,
        settings: Mapping[str, str] | None = None,
        heap_mb: int = 256,
        java_options: Sequence[str] = (),
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self._secure = certificates is not None
        names = ["PLAINTEXT", "CONTROLLER", *(["SASL_SSL", "SSL"] if certificates else [])]
        self._ports = [{name: free_port() for name in names} for _ in range(nodes)]
        common = _common(self._ports) | (_access(certificates, folder) if certificates else {}) | dict(settings or {})
        self.nodes = [
            KafkaNode(
                kafka,
                folder / f"node-{number}",
                number,
                port=ports["PLAINTEXT"],
                settings=common | _own(number, ports),
                heap_mb=heap_mb,
                java_options=java_options,
            )
            for number, ports in enumerate(self._ports)
        ]

    def bootstrap(self, listener: str = "PLAINTEXT") -> str:
        return ",".join(f"127.0.0.1:{ports[listener]}" for ports in self._ports)

    def start(self) -> None:
        """Start the nodes that don't run, and wait until all answer; raises RuntimeError with the end of a log."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        down = [node for node in self.nodes if not node.process.running]
        scram = _scram_users() if self._secure else []
        formatting = [(node, node.prepare(cluster_id, scram)) for node in down]
        for node, tool in formatting:
            if tool is not None and tool.wait():
                raise RuntimeError(f"{node.process.name} could not be formatted:\n{node.process.tail()}")
        try:
            for node in down:
                node.process.launch()
            for node in down:
                node.process.wait_ready()
        except RuntimeError:
            self.kill()
            raise

    def stop(self) -> None:
        for node in self.nodes:
            node.process.terminate()
        # The last of several waits in vain for a majority that has gone; what it has written is safe by then.
        patience = 20 if len(self.nodes) == 1 else 3
        wait_until(lambda: not any(node.process.running for node in self.nodes), limit_seconds=patience)
        self.kill()

    def kill(self) -> None:
        for node in self.nodes:
            node.process.kill()

    def tool(self, main_class: str, *arguments: str) -> str:
        """Run one of Kafka's command line tools against the cluster; raises RuntimeError with what it printed."""
        at = ["--bootstrap-server", self.bootstrap()]
        command = self.kafka.command(f"org.apache.kafka.tools.{main_class}", *at, *arguments, heap_mb=128)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{main_class} ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return done.stdout

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Make node `to` the preferred leader, then elect it. The topic needs a replica on every node."""
        replicas = [to, *(node.number for node in self.nodes if node.number != to)]
        wanted = {"topic": topic, "partition": partition, "replicas": replicas}
        with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".json") as plan:
            json.dump({"version": 1, "partitions": [wanted]}, plan)
            plan.flush()
            # The same replicas in another order: nothing is copied, so there is nothing to wait for.
            self.tool("reassign.ReassignPartitionsCommand", "--reassignment-json-file", plan.name, "--execute")
        at = ["--topic", topic, "--partition", str(partition)]
        self.tool("LeaderElectionCommand", "--election-type", "preferred", *at)


def archive_classes(kafka: Kafka) -> None:
    """Once a release: run a broker for a moment, so that Java archives the classes it loads. Halves later starts."""
    with (CACHE / "archive.lock").open("w") as lock, tempfile.TemporaryDirectory() as folder:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kafka.class_archive.exists():
            part = kafka.class_archive.with_suffix(".part")
            options = ["-Xlog:cds=off", "-Xlog:cds+dynamic=off", f"-XX:ArchiveClassesAtExit={part}"]
            cluster = KafkaCluster(kafka, Path(folder), java_options=options)
            cluster.start()
            cluster.stop()
            # A Java without such archives has written none.
            if part.exists():
                part.rename(kafka.class_archive)


def answers(port: int) -> bool:
    """Whether a broker answers a request of Kafka's protocol: ApiVersions, version 0, without a client id."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def _own(number: int, ports: Mapping[str, int]) -> dict[str, str]:
    advertised = [f"{name}://127.0.0.1:{port}" for name, port in ports.items() if name != "CONTROLLER"]
    return {
        "node.id": str(number),
        "listeners": ",".join([*advertised, f"CONTROLLER://127.0.0.1:{ports['CONTROLLER']}"]),
        "advertised.listeners": ",".join(advertised),
    }


def _common(ports: Sequence[Mapping[str, int]]) -> dict[str, str]:
    nodes = len(ports)
    replicas, in_sync = str(min(3, nodes)), str(min(2, nodes))
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(f"{n}@127.0.0.1:{each['CONTROLLER']}" for n, each in enumerate(ports)),
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        # Kafka's own topics: few partitions, so that they load at once when their leader moves.
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": "1",
        # Tests wait for these.
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "4000",
        "log.cleaner.backoff.ms": "500",
        # A leader moves when a test says so, not by itself.
        "auto.leader.rebalance.enable": "false",
        "auto.create.topics.enable": "false",
        # Sized for a test.
        "log.cleaner.dedupe.buffer.size": "4194304",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }


def _access(certificates: Certificates, folder: Path) -> dict[str, str]:
    """SASL over TLS, mutual TLS and access control; who comes in without either, by PLAINTEXT, may do everything."""
    server = certificates.issue("kafka")
    modules = "org.apache.kafka.common.security"
    passwords = " ".join(f'user_{user}="{password}"' for user, password in USERS.items())
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.both_file),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.ca_file),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+)$/$1/,DEFAULT",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {passwords};",
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": f"{modules}.scram.ScramLoginModule required;",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": (
            f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="kafka";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "true",
    }


def _scram_users() -> list[str]:
    return [
        argument
        for user, password in USERS.items()
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for argument in ("--add-scram", f"{mechanism}=[name={user},password={password}]")
    ]

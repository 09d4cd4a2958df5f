"""A Pub/Sub server: one given by address, Google's emulator in Docker or as a local process, or the tests' own.

Where Google's emulator 0.8.20 differs from the service, as measured; a test that depends on one of these proves
nothing about the service:

- `max_outstanding_messages` and `max_outstanding_bytes` are ignored: a stream gets all there is, at most 100 messages a
  response and one response every 50 ms, so 2,000 messages/s. A pull isn't held back like that: 20,000 messages/s.
- Everything is lost at a restart. A test that needs the server away for a while and its messages afterwards puts a
  `services.proxy.TcpProxy` before it and cuts that.
- Retry policy and filter are stored, not applied: what was nacked comes back within half a second.
- With ordering keys a nacked message comes back alone, behind those that followed it.
- With exactly-once delivery Acknowledge has results for each ack id, but an acknowledgement on the stream has none.
- A message published in the moment in which a stream is cancelled goes to that stream, which then lives on inside the
  emulator and gets that message again whenever its lease ends. Half-closing a stream and reading to its end avoids it.
- An ack id of another subscription, or a malformed one, is InvalidArgument for the whole request, and ends a stream.
- A message that has failed too often moves to the dead letters at the next receive from its subscription.
- A pull of nothing returns after a second.
- Not enforced: deadlines over 600 s, subscriptions' deadlines under 10 s, request sizes, permissions.

`tests.emulators.pubsub` plays what is missing here.
"""

from __future__ import annotations

import glob
import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from services.chosen import ChosenServer
from services.docker import Container, docker_answers
from services.process import (
    LocalProcess,
    Service,
    ServiceUnavailable,
    free_port,
    http_ok,
    listening,
    require_real,
    wait_until,
)
from services.pubsub_subscription import PubSubSubscription

ENDPOINTS = ("PUBSUB_EMULATOR_HOST", "SHAREDSTREAM_PUBSUB_ENDPOINT")
"""Address of an emulator to use as it is, 127.0.0.1:8085 for example; the first one set counts."""

IMAGE = "google/cloud-sdk:528.0.0-emulators"
JARS = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
SDKS = ("/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk", "~/google-cloud-sdk")
INSTALL = (
    "Google's emulator is not here: it needs Java, and the package google-cloud-cli-pubsub-emulator from Google's own "
    "package source or `gcloud components install pubsub-emulator`"
)
CHECKOUT = Path(__file__).resolve().parent.parent


class PubSubServer(ChosenServer):
    """Starts what can be had: an address, Docker, Google's emulator as a local process, the tests' own emulator.

    Topics, subscriptions and messages are lost at `stop`, `restart` and `kill`; the port stays.

    :param folder: takes the log.
    """

    name = "pubsub"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        given = next((os.environ[name] for name in ENDPOINTS if os.environ.get(name)), "")
        self.endpoint = given.removeprefix("http://").rstrip("/")
        """host:port, for PUBSUB_EMULATOR_HOST; empty before the first start."""
        super().__init__(f"environment address {self.endpoint}" if self.endpoint else "")
        # An emulator takes any project; one of its own keeps a run apart from all others on a server that was given.
        self.project = f"sharedstream-{secrets.token_hex(4)}"

    @property
    def port(self) -> int:
        return int(self.endpoint.rpartition(":")[2])

    def start(self) -> None:
        if self._given:
            host = self.endpoint.rpartition(":")[0]
            if not wait_until(lambda: listening(self.port, host), limit_seconds=10):
                raise ServiceUnavailable(f"nothing answers at the {self.taken}")
        super().start()

    def connection(self) -> str:
        """An Airflow connection as JSON, for AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT beside PUBSUB_EMULATOR_HOST."""
        return json.dumps({"conn_type": "google_cloud_platform", "extra": {"project": self.project}})

    def create_subscription(
        self,
        name: str,
        *,
        ack_deadline_seconds: int = 10,
        ordered: bool = False,
        exactly_once: bool = False,
        max_delivery_attempts: int | None = None,
        dead_letters: bool = True,
    ) -> PubSubSubscription:
        """A topic and a subscription to it, both called `name`.

        :param ack_deadline_seconds: the subscription's; a stream brings its own.
        :param ordered: messages with an ordering key keep their order.
        :param exactly_once: acknowledgements have results.
        :param max_delivery_attempts: 5 to 100, after which the server moves a message to the dead letters; None: never.
        :param dead_letters: whether there is a topic and a subscription for them, called `name` with `-dead` behind it.
        """
        target = None
        if dead_letters:
            target = PubSubSubscription(self.endpoint, self.project, f"{name}-dead")
            target.create()
        subscription = PubSubSubscription(self.endpoint, self.project, name, target)
        subscription.create(
            ack_deadline_seconds=ack_deadline_seconds,
            ordered=ordered,
            exactly_once=exactly_once,
            max_delivery_attempts=max_delivery_attempts,
        )
        return subscription

    def _choose(self) -> None:
        why_not_docker = ""
        if docker_answers():
            # The image starts the emulator only when told to.
            command = "gcloud beta emulators pubsub start --host-port=0.0.0.0:8085"
            container = Container(IMAGE, 8085, env={}, command=command, ready=_answers)
            try:
                container.start()
            except ServiceUnavailable as error:
                why_not_docker = f" ({error})"
            else:
                self._server = container
                self.endpoint = f"127.0.0.1:{container.port}"
                self.taken = f"Docker image {container.image}"
                return
        port = free_port()
        jar, java = find_jar(), shutil.which("java")
        if jar is not None and java is not None:
            # Left alone, the JVM takes a quarter of the machine and a thread for every core.
            run = [java, "-Xmx1g", "-XX:+UseSerialGC", "-jar", str(jar), "--host=127.0.0.1", f"--port={port}"]
            self.taken = f"local process: Google's {jar.stem.removesuffix('-all')}{why_not_docker}"
        else:
            self.real = False
            run = [sys.executable, "-m", "tests.emulators.pubsub", f"--port={port}"]
            self.taken = f"the tests' own emulator ({INSTALL}){why_not_docker}"
        real = self.real
        self._server = LocalProcess(
            "Pub/Sub emulator",
            run,
            log_file=self.folder / "pubsub.log",
            cwd=CHECKOUT,
            ready=lambda: _answers(port) if real else listening(port),
        )
        self.endpoint = f"127.0.0.1:{port}"
        require_real(self)
        self._server.start()


def _answers(port: int) -> bool:
    return http_ok(f"http://127.0.0.1:{port}")


def find_jar() -> Path | None:
    """Google's emulator, newest first, in the Cloud SDK of the PATH or at its usual places."""
    folders = [Path(folder).expanduser() for folder in SDKS]
    if gcloud := shutil.which("gcloud"):
        folders.insert(0, Path(gcloud).resolve().parent.parent)
    for folder in folders:
        if jars := glob.glob(JARS, root_dir=folder):
            return folder / max(jars, key=lambda jar: [int(n) for n in jar.split("-")[-2].split(".")])
    return None


if TYPE_CHECKING:
    _: type[Service] = PubSubServer

"""Microsoft's Service Bus emulator in Docker, with the SQL Server that it keeps everything in."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from services.process import ServiceUnavailable, free_port, http_ok, wait_until

if TYPE_CHECKING:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

IMAGE = "mcr.microsoft.com/azure-messaging/servicebus-emulator:latest"
DATABASE_IMAGE = "mcr.microsoft.com/mssql/server:2022-latest"
AMQP_PORT, HTTP_PORT = 5672, 5300
CONFIG_FILE = "/ServiceBus_Emulator/ConfigFiles/Config.json"
READY_SECONDS = 240.0


class ServiceBusContainers:
    """Started and stopped together. Its license is accepted by starting it.

    :param folder: takes the configuration file.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.admin_port = free_port()
        """Where entities are made, over HTTP."""
        self._folder = folder
        self._network: Network | None = None
        self._containers: list[DockerContainer] = []

    def start(self) -> None:
        """Raises ServiceUnavailable when the images can't be had, RuntimeError when they don't get ready."""
        from docker.errors import DockerException
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.network import Network

        # SQL Server wants letters of both cases, digits and a sign.
        agreed = {"ACCEPT_EULA": "Y", "MSSQL_SA_PASSWORD": f"Aa1!{secrets.token_hex(12)}"}
        database = DockerContainer(DATABASE_IMAGE).with_envs(**agreed)
        emulator = DockerContainer(IMAGE).with_envs(SQL_SERVER="database", SQL_WAIT_INTERVAL="15", **agreed)
        emulator.with_volume_mapping(self._configuration(), CONFIG_FILE)
        # testcontainers passes the mapping on to docker-py, which takes an address beside the port.
        emulator.ports[f"{AMQP_PORT}/tcp"] = ("127.0.0.1", self.port)  # type: ignore[assignment]
        emulator.ports[f"{HTTP_PORT}/tcp"] = ("127.0.0.1", self.admin_port)  # type: ignore[assignment]
        try:
            self._network = Network()
            self._network.create()
            for container in (
                database.with_network(self._network).with_network_aliases("database"),
                emulator.with_network(self._network),
            ):
                container.start()
                self._containers.append(container)
        except DockerException as error:
            self.stop()
            raise ServiceUnavailable(f"Docker answers, but cannot run {IMAGE}: {error}") from error
        self._wait_ready()

    def stop(self) -> None:
        for container in reversed(self._containers):
            container.stop()
        self._containers.clear()
        if self._network is not None:
            self._network.remove()
            self._network = None

    def restart(self) -> None:
        """Restart the emulator alone."""
        self._containers[-1].get_wrapped_container().restart()
        self._wait_ready()

    def _wait_ready(self) -> None:
        if wait_until(lambda: http_ok(f"http://127.0.0.1:{self.admin_port}/health"), limit_seconds=READY_SECONDS):
            return
        out, errors = self._containers[-1].get_logs()
        self.stop()
        log = (out + errors).decode("utf-8", "replace")[-4000:]
        raise RuntimeError(f"{IMAGE} is not ready after {READY_SECONDS:g} s; its log ends with:\n{log}")

    def _configuration(self) -> Path:
        # It does not start without an entity; all others are made later.
        namespace = {"Name": "sbemulatorns", "Queues": [{"Name": "unused"}], "Topics": []}
        configuration = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / "service-bus-config.json"
        file.write_text(json.dumps(configuration, indent=2))
        return file.resolve()

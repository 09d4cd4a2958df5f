"""A Service Bus namespace: one given by connection string, Microsoft's emulator in Docker, or the tests' own emulator.

`tests/emulators/service_bus/__init__.py` says what the tests' own leaves out. All that can be ordered to go wrong, it
alone can do: see `ServiceBusServer.control`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.docker import docker_answers
from services.process import LocalProcess, Service, ServiceUnavailable, free_port, listening, require_real
from services.service_bus_docker import IMAGE, ServiceBusContainers
from services.started import Started

if TYPE_CHECKING:
    from tests.emulators.service_bus.control import RemoteControl

CONNECTION_STRING = "SHAREDSTREAM_SERVICEBUS_CONNECTION_STRING"
"""Of a namespace, with the right to manage it: queues are made there, and left there."""

CHECKOUT = Path(__file__).resolve().parent.parent
MICROSOFTS_KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"


class ServiceBusServer(Started):
    """Starts what can be had: $SHAREDSTREAM_SERVICEBUS_CONNECTION_STRING, Docker, the tests' own emulator as a process.

    With the tests' own, messages survive `restart`, but neither `stop` nor `kill`; the port stays the same.

    :param folder: takes logs and configuration.
    """

    name = "service_bus"
    real = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.taken = ""
        self.connection_string = os.environ.get(CONNECTION_STRING, "")
        """For the SDK; empty before the first start."""
        self._admin_connection_string = self.connection_string
        self._containers: ServiceBusContainers | None = None
        self._process: LocalProcess | None = None
        self._control: RemoteControl | None = None
        if self.connection_string:
            self.taken = f"environment variable {CONNECTION_STRING}"

    @property
    def control(self) -> RemoteControl:
        """Orders to the tests' own emulator; raises ServiceUnavailable where another server was taken."""
        if self._control is None:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} takes no orders")
        return self._control

    def start(self) -> None:
        """Raises ServiceUnavailable when nothing can serve it, RuntimeError when what was started isn't ready."""
        if self._process is not None:
            self._process.start()
        elif self._containers is not None:
            self._containers.start()
        elif not self.connection_string:
            self._choose()
        require_real(self)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
        if self._containers is not None:
            self._containers.stop()

    def restart(self) -> None:
        """Every connection ends, and the port closes for a moment; ServiceUnavailable for a given namespace."""
        if self._control is not None:
            self._control.go_down()
            self._control.come_up()
        elif self._containers is not None:
            self._containers.restart()
        else:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} can't be restarted")

    def kill(self) -> None:
        """KILL -9: queues and messages are gone; raises ServiceUnavailable where it isn't a local process."""
        if self._process is None:
            raise ServiceUnavailable(f"{self.taken or 'a server that was never started'} can't be killed")
        self._process.kill()

    def connection(self) -> str:
        """An Airflow connection as JSON, for AIRFLOW_CONN_AZURE_SERVICE_BUS_DEFAULT."""
        return json.dumps({"conn_type": "azure_service_bus", "schema": self.connection_string})

    def create_queue(
        self, name: str, *, lock_seconds: float = 60.0, max_delivery_count: int = 10, requires_session: bool = False
    ) -> str:
        """A new queue; returns its path.

        :param lock_seconds: how long a message, or a session, is a receiver's; 5 to 300 on the service.
        :param max_delivery_count: after so many deliveries the server itself dead-letters a message.
        """
        options = {
            "lock_seconds": lock_seconds,
            "max_delivery_count": max_delivery_count,
            "requires_session": requires_session,
        }
        if self._control is not None:
            self._control.order("create_queue", path=name, options=options)
        else:
            with self._administration() as administration:
                administration.create_queue(name, **_properties(options))
        return name

    def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        lock_seconds: float = 60.0,
        max_delivery_count: int = 10,
        requires_session: bool = False,
    ) -> str:
        """A new subscription, and its topic where there is none; returns the subscription's path."""
        options = {
            "lock_seconds": lock_seconds,
            "max_delivery_count": max_delivery_count,
            "requires_session": requires_session,
        }
        if self._control is not None:
            self._control.order("create_subscription", topic=topic, name=name, options=options)
        else:
            from azure.core.exceptions import ResourceExistsError

            with self._administration() as administration:
                try:
                    administration.create_topic(topic)
                except ResourceExistsError:
                    pass
                administration.create_subscription(topic, name, **_properties(options))
        return f"{topic}/Subscriptions/{name}"

    def pending(self, path: str) -> int:
        """Messages in a queue or subscription that are neither settled for good nor dead-lettered."""
        if self._control is not None:
            counts = self._control.counts(path)
            return counts.active + counts.locked + counts.deferred + counts.scheduled
        topic, _, subscription = path.partition("/Subscriptions/")
        with self._administration() as administration:
            if subscription:
                found = administration.get_subscription_runtime_properties(topic, subscription)
            else:
                found = administration.get_queue_runtime_properties(path)
            return int(found.total_message_count) - int(found.dead_letter_message_count)

    def _choose(self) -> None:
        why_not_docker = ""
        if docker_answers():
            containers = ServiceBusContainers(self.folder)
            try:
                containers.start()
            except ServiceUnavailable as error:
                why_not_docker = f" ({error})"
            else:
                self._containers = containers
                self.connection_string = _microsofts(containers.port)
                self._admin_connection_string = _microsofts(containers.admin_port)
                self.taken = f"Docker image {IMAGE}"
                return
        if importlib.util.find_spec("proton") is None:
            raise ServiceUnavailable(
                f"no Service Bus: {CONNECTION_STRING} is not set, Docker does not answer{why_not_docker}, and the "
                "tests' own emulator lacks python-qpid-proton, which `pip install --group servicebus-emulator` compiles"
            )
        from tests.emulators.service_bus.control import RemoteControl

        port, control_port = free_port(), free_port()
        command = [sys.executable, "-m", "tests.emulators.service_bus"]
        self._process = LocalProcess(
            "Service Bus emulator",
            [*command, "--port", str(port), "--control-port", str(control_port)],
            log_file=self.folder / "service-bus.log",
            cwd=CHECKOUT,
            ready=lambda: listening(port) and listening(control_port),
        )
        self._control = RemoteControl(port, control_port)
        self.connection_string = self._control.connection_string()
        self.taken = f"the tests' own emulator{why_not_docker}"
        self._process.start()

    def _administration(self) -> Any:
        from azure.servicebus.management import ServiceBusAdministrationClient

        return ServiceBusAdministrationClient.from_connection_string(self._admin_connection_string)


def _microsofts(port: int) -> str:
    return f"Endpoint=sb://127.0.0.1:{port};{MICROSOFTS_KEY};UseDevelopmentEmulator=true;"


def _properties(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "lock_duration": timedelta(seconds=options["lock_seconds"]),
        "max_delivery_count": options["max_delivery_count"],
        "requires_session": options["requires_session"],
    }


if TYPE_CHECKING:
    _: type[Service] = ServiceBusServer

"""Orders to a running emulator: one typed interface, for one in this process and for one in another."""

from __future__ import annotations

import abc
import dataclasses
import json
import socket
from collections.abc import Collection
from typing import Any, Final

from tests.emulators.service_bus.refusals import SERVER_BUSY
from tests.emulators.service_bus.stored import Counts, QueueOptions

ROOT_KEY_NAME: Final = "RootManageSharedAccessKey"
ROOT_KEY: Final = "SAS_KEY_VALUE"


@dataclasses.dataclass(frozen=True, slots=True)
class Statistics:
    """Links are counted without those to ``$cbs`` and ``$management``; opened and done: since the start.

    :param settled: settlements carried out, also those whose answer was lost.
    """

    connections: int
    connections_opened: int
    senders: int
    senders_opened: int
    receivers: int
    receivers_opened: int
    delivered: int
    settled: int
    locks_renewed: int


class Control(abc.ABC):
    """What a test can order. Entities are named by path, subscriptions ``topic/Subscriptions/name``; case-insensitive.

    Each raises RuntimeError with the emulator's reason when an order can't be carried out.

    :param port: of the AMQP socket, on 127.0.0.1.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self._keys = {ROOT_KEY_NAME: ROOT_KEY}

    @abc.abstractmethod
    def order(self, name: str, /, **arguments: Any) -> Any:
        """Carry out one order; arguments and answer are what JSON can hold."""

    def connection_string(self, key_name: str = ROOT_KEY_NAME, key: str | None = None, *, entity: str = "") -> str:
        """For the SDK. `key`: another secret than the right one. `entity`: tie it to this queue or topic."""
        parts = {
            "Endpoint": f"sb://127.0.0.1:{self.port}",
            "SharedAccessKeyName": key_name,
            "SharedAccessKey": key or self._keys[key_name],
            "UseDevelopmentEmulator": "true",
        }
        if entity:
            parts["EntityPath"] = entity
        return "".join(f"{name}={value};" for name, value in parts.items())

    # Entities and keys

    def create_queue(self, path: str, options: QueueOptions | None = None) -> None:
        self.order("create_queue", path=path, options=_options(options))

    def create_topic(self, path: str) -> None:
        """A topic without subscriptions; does nothing where there is one."""
        self.order("create_topic", path=path)

    def create_subscription(self, topic: str, name: str, options: QueueOptions | None = None) -> str:
        """A subscription, and its topic where there is none; returns the subscription's path."""
        self.order("create_subscription", topic=topic, name=name, options=_options(options))
        return f"{topic}/Subscriptions/{name}"

    def delete(self, path: str) -> None:
        """Delete a queue, subscription or topic; its links are detached."""
        self.order("delete", path=path)

    def disable(self, path: str) -> None:
        """Disable receiving from a queue or subscription; its receivers are detached."""
        self.order("disable", path=path)

    def add_key(self, name: str, secret: str, rights: Collection[str]) -> None:
        """A shared access policy with some of the rights Send, Listen and Manage; replaces one of that name."""
        self.order("add_key", name=name, secret=secret, rights=sorted(rights))
        self._keys[name] = secret

    def add_bearer(self, token: str, rights: Collection[str], *, seconds: float = 3600.0) -> None:
        """Accept this text as a directory's token, good for so long from each time that it is shown. All others are
        refused.
        """
        self.order("add_bearer", token=token, rights=sorted(rights), seconds=seconds)

    # Entrances

    def open_websocket(self) -> int:
        """Serve AMQP over WebSocket, too, on a free port; returns it, for the SDK's ``custom_endpoint_address``."""
        return int(self.order("open_websocket"))

    # Faults

    def drop_connections(self) -> int:
        """Cut every connection without a word; returns how many."""
        return int(self.order("drop_connections"))

    def go_down(self) -> None:
        """Cut every connection and refuse new ones until `come_up`. Messages stay, and time goes on."""
        self.order("go_down")

    def come_up(self) -> None:
        self.order("come_up")

    def detach_links(self, path: str | None = None) -> int:
        """Detach all senders and receivers (of one entity) as idle; their connections stay. Returns how many."""
        return int(self.order("detach_links", path=path))

    def expire_locks(self, path: str | None = None) -> int:
        """Let all locks (of one entity) lapse, sessions' too; returns how many."""
        return int(self.order("expire_locks", path=path))

    def lose_session(self, path: str, session_id: str) -> bool:
        """Take a session from its receiver; returns whether it had one."""
        return bool(self.order("lose_session", path=path, session_id=session_id))

    def fail_settlements(self, count: int, condition: str = SERVER_BUSY) -> None:
        """Reject the next settlements, without carrying them out, with this AMQP error condition."""
        self.order("fail_settlements", count=count, condition=condition)

    def lose_settlement_replies(self, count: int) -> None:
        """Carry out the next settlements on receivers' links, but cut the connection instead of answering."""
        self.order("lose_settlement_replies", count=count)

    def forget_faults(self) -> int:
        """Call off what was ordered of the two above and hasn't happened yet; returns how many."""
        return int(self.order("forget_faults"))

    # What there is

    def statistics(self) -> Statistics:
        return Statistics(**self.order("statistics"))

    def counts(self, path: str) -> Counts:
        """How many messages a queue or subscription holds."""
        return Counts(**self.order("counts", path=path))


class RemoteControl(Control):
    """Of an emulator in another process, over its control port: a line of JSON each way."""

    def __init__(self, port: int, control_port: int) -> None:
        super().__init__(port)
        self._control_port = control_port

    def order(self, name: str, /, **arguments: Any) -> Any:
        with socket.create_connection(("127.0.0.1", self._control_port), timeout=30) as connection:
            connection.sendall(json.dumps({"order": name, "arguments": arguments}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


def _options(options: QueueOptions | None) -> dict[str, Any]:
    return dataclasses.asdict(options or QueueOptions())

"""The gRPC server, in threads of this process."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from services.started import Started
from tests.emulators.pubsub.backlog import Depth
from tests.emulators.pubsub.broker import Broker
from tests.emulators.pubsub.faults import Faults
from tests.emulators.pubsub.streaming import StreamingCalls
from tests.emulators.pubsub.unary import UnaryCalls

THREADS = 100
"""Each open stream takes one for itself."""


class PubSubEmulator(Started):
    """A Pub/Sub server on 127.0.0.1, for clients with an insecure channel.

    Messages survive `stop` and `start`, which keep the port: clients see a server that was away for a while.

    :param port: default: a free one.
    :param shortest_deadline_seconds: lets tests use shorter deadlines than the service's 10 seconds.
    """

    def __init__(self, port: int = 0, *, shortest_deadline_seconds: int = 10) -> None:
        self.port = port
        self.calls: Counter[str] = Counter()
        """How often each method was called, by its name: "Acknowledge"; one that was refused counts too."""
        self._broker = Broker(shortest_deadline_seconds)
        self.faults = Faults(self._broker.changed)
        self._unary = UnaryCalls(self._broker, self.faults, self._count)
        self._streaming = StreamingCalls(self._broker, self.faults, self._count)
        self._server: Any = None

    @property
    def endpoint(self) -> str:
        """host:port, for PUBSUB_EMULATOR_HOST."""
        return f"127.0.0.1:{self.port}"

    @property
    def open_streams(self) -> int:
        return len(self._streaming.open)

    def start(self) -> None:
        """Raises RuntimeError when the port is taken."""
        self._threads = ThreadPoolExecutor(THREADS, "pubsub-emulator")
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        server = grpc.server(self._threads, options=options)
        server.add_generic_rpc_handlers((*self._unary.handlers(), self._streaming.handler()))
        self.port = server.add_insecure_port(self.endpoint)
        server.start()
        self._server = server

    def stop(self) -> None:
        """Drop every connection at once. Does nothing when it isn't running."""
        if self._server is not None:
            self._server.stop(grace=None).wait()
            self._threads.shutdown()
            self._server = None

    def wait(self) -> None:
        """Return when the server has stopped."""
        self._server.wait_for_termination()

    def depth(self, subscription: str) -> Depth:
        """What a subscription owes; raises ApiError when there is none of that name.

        :param subscription: full name.
        """
        with self._broker.changed:
            return self._broker.backlog(subscription).depth()

    def set_ordering(self, subscription: str, enabled: bool) -> None:
        """Switch ordering for what is published from now on, as by deleting the subscription and making it anew."""
        with self._broker.changed:
            self._broker.backlog(subscription).subscription.enable_message_ordering = enabled

    def _count(self, method: str) -> None:
        self.calls[method] += 1

"""A relay between clients and an emulator that can't tell what a subscription owes: it keeps account on the way.

What is acknowledged is what the server has said OK to, for the delivery that was the latest one of its message.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import ErrorInfo
from grpc_status import rpc_status

from services.pubsub_subscription import CHANNEL_OPTIONS

if TYPE_CHECKING:
    from typing_extensions import Self

THREADS = 60
"""Each open stream takes one for itself."""


class Relay(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Passes every call on, bytes as they are.

    :param endpoint: host:port of the emulator.
    """

    def __init__(self, endpoint: str) -> None:
        self.calls: Counter[str] = Counter()
        """By method: "Acknowledge"."""
        self.open_streams = 0
        self.authorizations: set[str] = set()
        """Who called, as clients say it."""
        self._channel = grpc.insecure_channel(endpoint, options=CHANNEL_OPTIONS)
        self._threads = ThreadPoolExecutor(THREADS, "pubsub-relay")
        self._server = grpc.server(self._threads, options=[("grpc.so_reuseport", 0), *CHANNEL_OPTIONS])
        self._server.add_generic_rpc_handlers((self,))
        self.port = int(self._server.add_insecure_port("127.0.0.1:0"))
        self._lock = threading.Lock()
        self._topics: dict[str, list[str]] = {}
        self._owed: dict[str, set[str]] = {}
        self._latest: dict[str, dict[str, str]] = {}
        """By subscription: message id to the ack id of its latest delivery."""

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(grace=None).wait()
        self._threads.shutdown()
        self._channel.close()

    def owed(self, subscription: str) -> int:
        """Messages that were published and not acknowledged."""
        with self._lock:
            return len(self._owed[subscription])

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        self.authorizations.update(str(value) for name, value in details.invocation_metadata if name == "authorization")
        if details.method.endswith("/StreamingPull"):
            return grpc.stream_stream_rpc_method_handler(self._stream(details.method))
        return grpc.unary_unary_rpc_method_handler(self._unary(details.method))

    def _unary(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        name = method.rpartition("/")[2]

        def call(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls[name] += 1
            try:
                response: bytes = self._channel.unary_unary(method)(request, timeout=60)
            except grpc.RpcError as error:
                if name == "Acknowledge" and (failed := _failed_ack_ids(error)):
                    self._note_acknowledged(request, failed)
                _pass_on(error, context)
                raise
            self._note(name, request, response)
            return response

        return call

    def _stream(self, method: str) -> Callable[[Iterator[bytes], grpc.ServicerContext], Iterator[bytes]]:
        def call(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            self.calls["StreamingPull"] += 1
            subscription: list[str] = []

            def passing() -> Iterator[bytes]:
                # A client that has gone is passed on as one that has nothing more to say: cancelled streams live on
                # inside Google's emulator, and what they are sent comes minutes late.
                with contextlib.suppress(grpc.RpcError):
                    for request in requests:
                        if not subscription:
                            subscription.append(types.StreamingPullRequest.deserialize(request).subscription)
                        yield request

            responses = self._channel.stream_stream(method)(passing())
            self.open_streams += 1
            try:
                for response in responses:
                    if not context.is_active():
                        continue
                    received = types.StreamingPullResponse.deserialize(response).received_messages
                    self._note_delivered(subscription[0], received)
                    yield response
            except grpc.RpcError as error:
                _pass_on(error, context)
            finally:
                self.open_streams -= 1

        return call

    def _note(self, name: str, request: bytes, response: bytes) -> None:
        if name == "CreateSubscription":
            made = types.Subscription.deserialize(request)
            with self._lock:
                self._topics.setdefault(made.topic, []).append(made.name)
                self._owed[made.name] = set()
                self._latest[made.name] = {}
        elif name == "Publish":
            topic = types.PublishRequest.deserialize(request).topic
            with self._lock:
                for subscription in self._topics.get(topic, ()):
                    self._owed[subscription].update(types.PublishResponse.deserialize(response).message_ids)
        elif name == "Pull":
            subscription = types.PullRequest.deserialize(request).subscription
            self._note_delivered(subscription, types.PullResponse.deserialize(response).received_messages)
        elif name == "Acknowledge":
            self._note_acknowledged(request, {})

    def _note_acknowledged(self, request: bytes, failed: Mapping[str, str]) -> None:
        acknowledged = types.AcknowledgeRequest.deserialize(request)
        with self._lock:
            latest = self._latest[acknowledged.subscription]
            by_ack_id = {ack_id: message_id for message_id, ack_id in latest.items() if ack_id not in failed}
            done = {by_ack_id[ack_id] for ack_id in acknowledged.ack_ids if ack_id in by_ack_id}
            self._owed[acknowledged.subscription] -= done
            for message_id in done:
                del latest[message_id]

    def _note_delivered(self, subscription: str, received: Any) -> None:
        with self._lock:
            self._latest[subscription].update((one.message.message_id, one.ack_id) for one in received)


def _pass_on(error: Any, context: grpc.ServicerContext) -> None:
    """End a call as the server ended it."""
    context.set_trailing_metadata(error.trailing_metadata() or ())
    context.abort(error.code(), error.details())


def _failed_ack_ids(error: Any) -> Mapping[str, str]:
    """What an exactly-once subscription says of ack ids; those that it doesn't name were processed."""
    status = rpc_status.from_call(error)
    for detail in () if status is None else status.details:
        info = ErrorInfo()
        if detail.Unpack(info) and info.reason == "EXACTLY_ONCE_ACKID_FAILURE":
            return dict(info.metadata)
    return {}

"""The calls with one answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.pubsub_v1 import types

from tests.emulators.pubsub import errors
from tests.emulators.pubsub.backlog import Backlog, Outcome
from tests.emulators.pubsub.broker import Broker
from tests.emulators.pubsub.faults import Faults
from tests.emulators.pubsub.lanes import Holder

PULL_WAIT_SECONDS = 1.0
"""How long a pull waits for a first message; the service may take longer."""


class UnaryCalls:
    """Every method takes a request, holds the lock, and returns a response or raises ApiError."""

    def __init__(self, broker: Broker, faults: Faults, count: Callable[[str], None]) -> None:
        self._broker = broker
        self._faults = faults
        self._count = count

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        return [
            self._service(
                "google.pubsub.v1.Publisher",
                (self.create_topic, types.Topic),
                (self.get_topic, types.GetTopicRequest),
                (self.delete_topic, types.DeleteTopicRequest),
                (self.publish, types.PublishRequest),
            ),
            self._service(
                "google.pubsub.v1.Subscriber",
                (self.create_subscription, types.Subscription),
                (self.get_subscription, types.GetSubscriptionRequest),
                (self.update_subscription, types.UpdateSubscriptionRequest),
                (self.delete_subscription, types.DeleteSubscriptionRequest),
                (self.pull, types.PullRequest),
                (self.acknowledge, types.AcknowledgeRequest),
                (self.modify_ack_deadline, types.ModifyAckDeadlineRequest),
            ),
        ]

    def create_topic(self, request: types.Topic) -> types.Topic:
        return self._broker.create_topic(request)

    def get_topic(self, request: types.GetTopicRequest) -> types.Topic:
        return self._broker.topic(request.topic)

    def delete_topic(self, request: types.DeleteTopicRequest) -> None:
        self._broker.delete_topic(request.topic)

    def publish(self, request: types.PublishRequest) -> types.PublishResponse:
        errors.check_size(request, errors.MAX_PUBLISH_BYTES)
        return types.PublishResponse(message_ids=self._broker.publish(request.topic, request.messages))

    def create_subscription(self, request: types.Subscription) -> types.Subscription:
        return self._broker.create_subscription(request)

    def get_subscription(self, request: types.GetSubscriptionRequest) -> types.Subscription:
        return self._broker.backlog(request.subscription).subscription

    def update_subscription(self, request: types.UpdateSubscriptionRequest) -> types.Subscription:
        return self._broker.update_subscription(request.subscription, list(request.update_mask.paths))

    def delete_subscription(self, request: types.DeleteSubscriptionRequest) -> None:
        self._broker.delete_subscription(request.subscription)

    def pull(self, request: types.PullRequest) -> types.PullResponse:
        if request.max_messages <= 0:
            raise errors.invalid("max_messages must be positive.")
        # Each pull holds its own messages: of one ordering key, one pull's worth is out at a time.
        holder, until = Holder(), time.monotonic() + PULL_WAIT_SECONDS
        while True:
            backlog = self._broker.backlog(request.subscription)
            deadline = backlog.subscription.ack_deadline_seconds
            received = backlog.take(holder, deadline, max_messages=min(request.max_messages, 1000))
            now = time.monotonic()
            if received or request.return_immediately or now >= until:
                return types.PullResponse(received_messages=received)
            self._broker.changed.wait(max(0.0, min(until, backlog.wakes_at() or until) - now))

    def acknowledge(self, request: types.AcknowledgeRequest) -> None:
        backlog = self._settling(request)
        failing, others = self._failing(backlog, request)
        self._finish(backlog, backlog.acknowledge(others), failing)

    def modify_ack_deadline(self, request: types.ModifyAckDeadlineRequest) -> None:
        backlog = self._settling(request)
        if request.ack_deadline_seconds:
            errors.check_deadline("ack deadline", request.ack_deadline_seconds, 1)
        failing, others = self._failing(backlog, request)
        self._finish(backlog, backlog.modify_deadline(others, request.ack_deadline_seconds), failing)

    def _settling(self, request: types.AcknowledgeRequest | types.ModifyAckDeadlineRequest) -> Backlog:
        errors.check_size(request)
        if not request.ack_ids:
            raise errors.invalid("No ack ids specified.")
        return self._broker.backlog(request.subscription)

    def _failing(self, backlog: Backlog, request: Any) -> tuple[list[str], list[str]]:
        ack_ids = list(request.ack_ids)
        return self._faults.take_failing(ack_ids) if backlog.exactly_once else ([], ack_ids)

    def _finish(self, backlog: Backlog, outcome: Outcome, failing: list[str]) -> None:
        self._broker.changed.notify_all()
        outcome.failed = failing
        if backlog.exactly_once and (failures := outcome.failures()):
            raise errors.failed_ack_ids(failures)

    def _service(self, name: str, *methods: tuple[Callable[[Any], Any], Any]) -> grpc.GenericRpcHandler:
        handlers = {}
        for method, request_type in methods:
            rpc = method.__name__.title().replace("_", "")
            handlers[rpc] = grpc.unary_unary_rpc_method_handler(
                self._guarded(rpc, method),
                request_deserializer=request_type.deserialize,
                response_serializer=_serialize,
            )
        return grpc.method_handlers_generic_handler(name, handlers)

    def _guarded(self, rpc: str, method: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                with self._broker.changed:
                    self._count(rpc)
                    if error := self._faults.refusal(rpc):
                        raise error
                    response = method(request)
                    if error := self._faults.refusal(rpc, applied=True):
                        raise error
            except errors.ApiError as error:
                error.abort(context)
            return response

        return call


def _serialize(response: Any) -> bytes:
    empty: bytes = Empty().SerializeToString()
    return empty if response is None else type(response).serialize(response)

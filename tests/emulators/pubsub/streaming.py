"""StreamingPull: messages down, acknowledgements and deadlines up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Thread

import grpc
from google.pubsub_v1.types import StreamingPullRequest, StreamingPullResponse

from tests.emulators.pubsub import errors
from tests.emulators.pubsub.backlog import Outcome
from tests.emulators.pubsub.broker import Broker
from tests.emulators.pubsub.faults import Faults
from tests.emulators.pubsub.lanes import Holder

LONGEST_WAIT_SECONDS = 0.2
"""A test may change at any time when streams end."""


class StreamingCalls:
    """The bidirectional call, and which streams are open."""

    def __init__(self, broker: Broker, faults: Faults, count: Callable[[str], None]) -> None:
        self._broker = broker
        self._faults = faults
        self._count = count
        self.open: set[Stream] = set()

    def handler(self) -> grpc.GenericRpcHandler:
        call = grpc.stream_stream_rpc_method_handler(
            self.streaming_pull,
            request_deserializer=StreamingPullRequest.deserialize,
            response_serializer=StreamingPullResponse.serialize,
        )
        return grpc.method_handlers_generic_handler("google.pubsub.v1.Subscriber", {"StreamingPull": call})

    def streaming_pull(
        self, requests: Iterator[StreamingPullRequest], context: grpc.ServicerContext
    ) -> Iterator[StreamingPullResponse]:
        try:
            stream = self._accept(requests)
            context.add_callback(stream.close)
            Thread(target=stream.listen, args=(requests,), daemon=True).start()
            with stream:
                self.open.add(stream)
                while (response := stream.next_response()) is not None:
                    yield response
        except errors.ApiError as error:
            error.abort(context)
        except grpc.RpcError:
            return  # the client left before its first request

    def _accept(self, requests: Iterator[StreamingPullRequest]) -> Stream:
        # Refused only when the first request is here: answered earlier, grpc.aio would report its failed write instead.
        first = next(requests, None)
        with self._broker.changed:
            self._count("StreamingPull")
            if error := self._faults.refusal("StreamingPull"):
                raise error
        if first is None or not first.subscription:
            raise errors.invalid("The first request of a stream must name the subscription.")
        shortest = self._broker.shortest_deadline_seconds
        errors.check_deadline("stream_ack_deadline_seconds", first.stream_ack_deadline_seconds, shortest)
        return Stream(self._broker, self._faults, first, self.open.discard)


class Stream(Holder):
    """One open stream; `listen` runs in a thread of its own beside whoever asks for responses."""

    def __init__(
        self, broker: Broker, faults: Faults, first: StreamingPullRequest, closed: Callable[[Stream], None]
    ) -> None:
        super().__init__()
        self.subscription = first.subscription
        self.client_id = first.client_id
        self.opened_at = time.monotonic()
        self._broker = broker
        self._faults = faults
        self._forget = closed
        with broker.changed:
            self._backlog = broker.backlog(first.subscription)
        self._deadline_seconds = first.stream_ack_deadline_seconds
        self._max_messages = first.max_outstanding_messages
        self._max_bytes = first.max_outstanding_bytes
        self._acknowledged = Outcome()
        self._modified = Outcome()
        self._error: errors.ApiError | None = None
        self._half_closed = self._closed = False
        self._apply(first)

    __hash__ = object.__hash__

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Whoever waits for a response gets none. What was delivered stays leased, as with the service."""
        self._forget(self)
        with self._broker.changed:
            self._closed = True
            self._broker.changed.notify_all()

    def listen(self, requests: Iterator[StreamingPullRequest]) -> None:
        """Carry out what the client sends, until it sends no more."""
        try:
            for request in requests:
                self._check_later(request)
                self._apply(request)
        except errors.ApiError as error:
            self._error = error
        except grpc.RpcError:
            self._closed = True
        with self._broker.changed:
            self._half_closed = True
            self._broker.changed.notify_all()

    def next_response(self) -> StreamingPullResponse | None:
        """Wait for something to say; None when the stream is over. Raises ApiError when it ends with a status."""
        changed = self._broker.changed
        with changed:
            while True:
                self._raise_if_ended()
                if self._closed:
                    return None
                response = self._response()
                if response is not None:
                    return response
                if self._half_closed:
                    return None
                wakes_at = self._backlog.wakes_at()
                wait = LONGEST_WAIT_SECONDS if wakes_at is None else wakes_at - time.monotonic()
                changed.wait(max(0.0, min(wait, LONGEST_WAIT_SECONDS)))

    def _response(self) -> StreamingPullResponse | None:
        received = self._backlog.take(
            self,
            self._deadline_seconds,
            outstanding_messages=self._max_messages,
            outstanding_bytes=self._max_bytes,
        )
        acknowledged, self._acknowledged = self._acknowledged, Outcome()
        modified, self._modified = self._modified, Outcome()
        if not (received or acknowledged or modified):
            return None
        settings = self._backlog.subscription
        response = StreamingPullResponse(
            received_messages=received,
            subscription_properties=StreamingPullResponse.SubscriptionProperties(
                exactly_once_delivery_enabled=settings.enable_exactly_once_delivery,
                message_ordering_enabled=settings.enable_message_ordering,
            ),
        )
        if acknowledged:
            response.acknowledge_confirmation = StreamingPullResponse.AcknowledgeConfirmation(
                ack_ids=acknowledged.done,
                invalid_ack_ids=acknowledged.invalid,
                unordered_ack_ids=acknowledged.unordered,
                temporary_failed_ack_ids=acknowledged.failed,
            )
        if modified:
            response.modify_ack_deadline_confirmation = StreamingPullResponse.ModifyAckDeadlineConfirmation(
                ack_ids=modified.done,
                invalid_ack_ids=modified.invalid,
                temporary_failed_ack_ids=modified.failed,
            )
        return response

    def _raise_if_ended(self) -> None:
        if self._error is not None:
            raise self._error
        if error := self._faults.stream_ended(self.opened_at):
            raise error
        if self._broker.backlogs.get(self.subscription) is not self._backlog:
            raise errors.not_found("subscription", self.subscription)

    def _check_later(self, request: StreamingPullRequest) -> None:
        if request.subscription or request.max_outstanding_messages or request.max_outstanding_bytes:
            raise errors.invalid("Only the first request may name the subscription and set flow control.")
        if request.stream_ack_deadline_seconds:
            shortest = self._broker.shortest_deadline_seconds
            errors.check_deadline("stream_ack_deadline_seconds", request.stream_ack_deadline_seconds, shortest)
            self._deadline_seconds = request.stream_ack_deadline_seconds

    def _apply(self, request: StreamingPullRequest) -> None:
        errors.check_size(request)
        modified = list(zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False))
        if not len(modified) == len(request.modify_deadline_ack_ids) == len(request.modify_deadline_seconds):
            raise errors.invalid("There must be as many deadlines as ack ids to modify.")
        with self._broker.changed:
            confirmed = self._backlog.exactly_once
            ack_ids = list(request.ack_ids)
            failing, others = self._faults.take_failing(ack_ids) if confirmed else ([], ack_ids)
            acknowledged = self._backlog.acknowledge(others)
            acknowledged.failed = failing
            if confirmed:
                self._acknowledged.add(acknowledged)
            for seconds in dict.fromkeys(seconds for _, seconds in modified):
                if seconds:
                    errors.check_deadline("ack deadline", seconds, 1)
                outcome = self._backlog.modify_deadline([a for a, s in modified if s == seconds], seconds)
                if confirmed:
                    self._modified.add(outcome)
            self._broker.changed.notify_all()

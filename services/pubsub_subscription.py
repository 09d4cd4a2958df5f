"""A topic and its subscription from a test's point of view: send, receive, take all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.pubsub_v1 import PublisherClient, SubscriberClient
    from google.pubsub_v1.types import ReceivedMessage

CHANNEL_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
"""A message may have 10 MB; gRPC's own limit is 4 MB."""

PUBLISH_BATCH = 1000
"""Messages in one publish request, https://cloud.google.com/pubsub/quotas#resource_limits"""


class PubSubSubscription:
    """Talks to an emulator without credentials, by unary calls.

    :param endpoint: host:port.
    :param project: any name.
    :param name: short name of both the topic and the subscription.
    :param dead_letters: where a delivery policy sends what failed too often.
    """

    def __init__(self, endpoint: str, project: str, name: str, dead_letters: PubSubSubscription | None = None) -> None:
        self.endpoint = endpoint
        self.project = project
        self.name = name
        self.topic = f"projects/{project}/topics/{name}"
        self.path = f"projects/{project}/subscriptions/{name}"
        """Full name of the subscription."""
        self.dead_letters = dead_letters

    def create(
        self,
        *,
        ack_deadline_seconds: int = 10,
        ordered: bool = False,
        exactly_once: bool = False,
        max_delivery_attempts: int | None = None,
    ) -> None:
        """See `PubSubServer.create_subscription`."""
        from google.pubsub_v1.types import DeadLetterPolicy, Subscription

        policy = None
        if max_delivery_attempts is not None:
            assert self.dead_letters is not None
            policy = DeadLetterPolicy(
                dead_letter_topic=self.dead_letters.topic, max_delivery_attempts=max_delivery_attempts
            )
        self.publisher.create_topic(name=self.topic)
        self.subscriber.create_subscription(
            request=Subscription(
                name=self.path,
                topic=self.topic,
                ack_deadline_seconds=ack_deadline_seconds,
                enable_message_ordering=ordered,
                enable_exactly_once_delivery=exactly_once,
                dead_letter_policy=policy,
            )
        )

    def delete(self) -> None:
        """Delete the subscription; the topic stays."""
        self.subscriber.delete_subscription(subscription=self.path)

    def send(
        self,
        bodies: Iterable[str | bytes],
        *,
        attributes: Mapping[str, str] | None = None,
        ordering_key: str = "",
    ) -> list[str]:
        """Publish, in that order; returns the message ids."""
        from google.pubsub_v1.types import PubsubMessage

        messages = [
            PubsubMessage(
                data=body.encode() if isinstance(body, str) else body,
                attributes=attributes or {},
                ordering_key=ordering_key,
            )
            for body in bodies
        ]
        ids: list[str] = []
        for start in range(0, len(messages), PUBLISH_BATCH):
            part = messages[start : start + PUBLISH_BATCH]
            ids += self.publisher.publish(topic=self.topic, messages=part).message_ids
        return ids

    def receive(self, max_messages: int = 1000) -> list[ReceivedMessage]:
        """What is ready now, leased for the subscription's deadline; maybe not all of it."""
        from google.api_core.grpc_helpers import wrap_errors
        from google.pubsub_v1.types import PullRequest

        # The flag is deprecated, since the service then misses messages; the emulators answer with what they have. The
        # client would warn at each call, hence past it.
        request = PullRequest(subscription=self.path, max_messages=max_messages, return_immediately=True)
        pull = wrap_errors(self.subscriber.transport.pull)  # type: ignore[no-untyped-call]
        return list(pull(request, timeout=60).received_messages)

    def acknowledge(self, received: Sequence[ReceivedMessage]) -> None:
        for start in range(0, len(received), PUBLISH_BATCH):
            ids = [message.ack_id for message in received[start : start + PUBLISH_BATCH]]
            self.subscriber.acknowledge(subscription=self.path, ack_ids=ids)

    def extend(self, received: Sequence[ReceivedMessage], seconds: int) -> None:
        """New ack deadline, from now; 0 gives the messages back."""
        ids = [message.ack_id for message in received]
        self.subscriber.modify_ack_deadline(subscription=self.path, ack_ids=ids, ack_deadline_seconds=seconds)

    def take(self) -> list[ReceivedMessage]:
        """All that is ready now, acknowledged; what somebody else holds a lease on isn't there."""
        taken: list[ReceivedMessage] = []
        while received := self.receive():
            self.acknowledge(received)
            taken += received
        return taken

    def close(self) -> None:
        """Close the connections; they open again at the next call."""
        for client in ("publisher", "subscriber"):
            if client in self.__dict__:
                self.__dict__.pop(client).transport.close()

    @cached_property
    def publisher(self) -> PublisherClient:
        import grpc  # type: ignore[import-untyped, unused-ignore]
        from google.pubsub_v1 import PublisherClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

        channel = grpc.insecure_channel(self.endpoint, options=CHANNEL_OPTIONS)
        return PublisherClient(transport=PublisherGrpcTransport(channel=channel))

    @cached_property
    def subscriber(self) -> SubscriberClient:
        import grpc  # type: ignore[import-untyped, unused-ignore]
        from google.pubsub_v1 import SubscriberClient
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

        channel = grpc.insecure_channel(self.endpoint, options=CHANNEL_OPTIONS)
        return SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))

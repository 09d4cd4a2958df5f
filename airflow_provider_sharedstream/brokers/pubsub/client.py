"""One channel to Pub/Sub, and the calls that a subscription needs, within the API's limits.

Every call is made once and ends in time: the SDK retries for minutes by default, and the machine has to see each
failure. Messages are settled by calls with an answer, not on the stream: what is written to a stream in a network that
has gone silent looks as if it had arrived.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.pubsub.errors import NotConnected, failed_ack_ids

MOST_ACK_IDS = 1_000
"""In one request. The API's limit is in bytes; the client libraries send so many."""
MOST_REQUEST_BYTES = 500_000
"""Of ack ids in one Acknowledge or ModifyAckDeadline, under the limit of 512 KiB
(https://cloud.google.com/pubsub/quotas#resource_limits). Ids have some 210 bytes, and have been growing.
"""
MOST_PULLED = 1_000
"""Messages in one Pull."""

CALL_SECONDS = 15.0
CLOSE_SECONDS = 1.0
"""How long a call that runs while the channel is closed may go on."""

EMULATOR = "PUBSUB_EMULATOR_HOST"
ANY_SIZE = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
"""A message has up to 10 MB and a response holds several; gRPC's own limit is 4 MB."""
LONG_REASONS = (("grpc.max_metadata_size", 2**20), ("grpc.absolute_max_metadata_size", 2**21))
"""With exactly-once delivery the metadata of an answer name each ack id that failed, in some 250 bytes. From 8 KB on
gRPC's own limits put an error of theirs in its place, and nobody knows what has failed.
"""
QUICK_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Connections are pooled by address otherwise, and a new channel would wait out the old one's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)
"""The machine has a backoff of its own, and gRPC's, up to two minutes, would be added to it."""
PING_TIMEOUT = (("grpc.http2.ping_timeout_ms", 20_000),)
"""With the transport's ping every 30 s, a silent network is noticed within 50 s instead of 90."""


class PubSubClient:
    """A channel with a subscriber and a publisher on it. To be made inside the event loop, once the SDK is imported.

    :param credentials: of google-auth; None: application default credentials. An emulator is given none.
    :param endpoint: host, and port where it isn't 443; None: the global one.
    """

    def __init__(self, credentials: Any = None, endpoint: str | None = None) -> None:
        import grpc
        from google.pubsub_v1 import PublisherAsyncClient, SubscriberAsyncClient
        from google.pubsub_v1.services.publisher.transports import PublisherGrpcAsyncIOTransport
        from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcAsyncIOTransport

        if (emulator := emulator_address()) is not None:
            # No keepalive: the emulator ends connections that are pinged more often than every five minutes.
            channel = grpc.aio.insecure_channel(emulator, options=[*ANY_SIZE, *LONG_REASONS, *QUICK_RECONNECT])
            transport = SubscriberGrpcAsyncIOTransport(channel=channel)
        else:

            def dial(host: str, **kwargs: Any) -> Any:
                options = [*kwargs.pop("options", ()), *LONG_REASONS, *QUICK_RECONNECT, *PING_TIMEOUT]
                return SubscriberGrpcAsyncIOTransport.create_channel(host, options=options, **kwargs)

            host = endpoint or SubscriberAsyncClient.DEFAULT_ENDPOINT
            transport = SubscriberGrpcAsyncIOTransport(host=host, credentials=credentials, channel=dial)
        self._channel = transport.grpc_channel
        self.subscriber = SubscriberAsyncClient(transport=transport)
        self._publisher = PublisherAsyncClient(transport=PublisherGrpcAsyncIOTransport(channel=self._channel))
        self._closed = False

    async def look_at_subscription(self, path: str) -> Any:
        """Return its settings."""
        return await self._call(self.subscriber.get_subscription, subscription=path)

    async def look_at_topic(self, path: str) -> Any:
        """Return its settings."""
        return await self._call(self._publisher.get_topic, topic=path)

    async def pull(self, path: str, most: int, wait_seconds: float) -> Sequence[Any]:
        """Return what there is, as raw protobuf; nothing after ``wait_seconds``."""
        from google.api_core.exceptions import DeadlineExceeded

        try:
            response = await self._call(
                self.subscriber.pull,
                seconds=wait_seconds,
                request={"subscription": path, "max_messages": min(most, MOST_PULLED)},
            )
        except DeadlineExceeded:
            return ()
        messages: Sequence[Any] = response._pb.received_messages
        return messages

    async def acknowledge(self, path: str, ack_ids: Sequence[str]) -> dict[str, BaseException]:
        """Acknowledge; return what failed of it, by ack id."""

        async def request(some: Sequence[str]) -> None:
            await self._call(self.subscriber.acknowledge, subscription=path, ack_ids=some)

        return await _in_requests(request, ack_ids)

    async def set_deadline(self, path: str, ack_ids: Sequence[str], seconds: int) -> dict[str, BaseException]:
        """Set how long from now the messages are ours; 0 gives them back. Return what failed of it, by ack id."""

        async def request(some: Sequence[str]) -> None:
            await self._call(
                self.subscriber.modify_ack_deadline, subscription=path, ack_ids=some, ack_deadline_seconds=seconds
            )

        return await _in_requests(request, ack_ids)

    async def publish(self, topic: str, messages: Sequence[Any]) -> None:
        """Publish; all of them or, where it raises, maybe none."""
        await self._call(self._publisher.publish, topic=topic, messages=messages)

    async def close(self) -> None:
        """Let go, calls that run included. Idempotent."""
        self._closed = True
        await self._channel.close(CLOSE_SECONDS)

    async def _call(self, method: Callable[..., Awaitable[Any]], *, seconds: float = CALL_SECONDS, **what: Any) -> Any:
        if self._closed:
            raise NotConnected("the connection to Pub/Sub is closed")
        return await method(retry=None, timeout=seconds, **what)


async def _in_requests(
    request: Callable[[Sequence[str]], Awaitable[None]], ack_ids: Sequence[str]
) -> dict[str, BaseException]:
    """Make the requests that ``ack_ids`` take, at once; return what failed, by ack id.

    :raises Exception: nothing was carried out.
    """
    parts = list(_parts(ack_ids))
    results = await asyncio.gather(*(request(part) for part in parts), return_exceptions=True)
    failures: dict[str, BaseException] = {}
    for part, result in zip(parts, results, strict=True):
        if isinstance(result, asyncio.CancelledError):
            # A call that we cancel ourselves doesn't get here: it was the channel.
            result = NotConnected("the connection to Pub/Sub was closed under a call")
        if result is not None:
            try:
                failures.update(failed_ack_ids(result, part))
            except Exception as error:
                if len(parts) == 1:
                    raise
                failures.update(dict.fromkeys(part, error))
    return failures


def _parts(ack_ids: Sequence[str]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for ack_id in ack_ids:
        cost = len(ack_id) + 4  # a protobuf tag and a length
        if part and (len(part) == MOST_ACK_IDS or size + cost > MOST_REQUEST_BYTES):
            yield part
            part, size = [], 0
        part.append(ack_id)
        size += cost
    if part:
        yield part


def emulator_address() -> str | None:
    """Return the address of the emulator that the environment names, as Google's own clients do, or None."""
    address = os.environ.get(EMULATOR, "").strip()
    with contextlib.suppress(ValueError):
        address = address[address.index("://") + 3 :]
    return address.rstrip("/") or None

"""Google Pub/Sub: streaming pull, with ordering keys and exactly-once delivery where the subscription has them."""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.pubsub.client import MOST_ACK_IDS, PubSubClient, emulator_address
from airflow_provider_sharedstream.brokers.pubsub.dead_letter import copies_of, in_requests
from airflow_provider_sharedstream.brokers.pubsub.delivery import delivery_of
from airflow_provider_sharedstream.brokers.pubsub.errors import (
    PLUGIN_FAILED,
    STREAMING_REFUSED,
    NotConnected,
    clear,
    code_of,
    is_transient,
)
from airflow_provider_sharedstream.brokers.pubsub.held import Held, ack_ids
from airflow_provider_sharedstream.brokers.pubsub.lookup import (
    Subscription,
    check_dead_letter_topic,
    full_name,
    look_at_subscription,
)
from airflow_provider_sharedstream.brokers.pubsub.releases import Releases
from airflow_provider_sharedstream.brokers.pubsub.stream import PullStream
from airflow_provider_sharedstream.connections.google import google_access, refusal_of
from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

log = logging.getLogger(__name__)

WAIT_SECONDS = 5.0
"""How long a receive waits when there is nothing; half the shortest deadline that a subscription may have."""
FRESH = 0.25
"""Of a lease's life, up to which it is handed over as it is; an older one is renewed first."""


class PubSubConsumer:
    """One channel on one subscription. The arguments are those of :class:`PubSubSharedStreamTrigger`."""

    source = "pubsub"

    def __init__(
        self,
        project_id: str | None,
        subscription: str,
        gcp_conn_id: str | None = "google_cloud_default",
        impersonation_chain: str | Sequence[str] | None = None,
        dead_letter_topic: str | None = None,
        ack_deadline_seconds: int = 60,
        endpoint: str | None = None,
    ) -> None:
        self._project = project_id
        self._subscription = str(subscription)
        self._gcp_conn_id = gcp_conn_id
        self._impersonation_chain = impersonation_chain
        self._dead_letter_topic = dead_letter_topic
        self._lease_seconds = ack_deadline_seconds
        self._endpoint = endpoint
        self.stream = self._subscription.rpartition("/")[2]
        self.lane_owner: LaneOwner | None = None
        self.limits = BrokerLimits(
            receive_batch=MOST_ACK_IDS, settle_batch=MOST_ACK_IDS, lease_seconds=float(ack_deadline_seconds)
        )
        self.capabilities = _capabilities(by_policy=False)
        self._path = ""
        self._dead_letter_path = ""
        self._found = Subscription()
        self._credentials: Any = None
        self._client: PubSubClient | None = None
        self._stream: PullStream | None = None
        self._releases = Releases(ack_deadline_seconds)

    @property
    def identity(self) -> str:
        return f"pubsub:{self._path or f'{self._project}/{self._subscription}'}"

    @property
    def dead_letter_place(self) -> str | None:
        return f"topic {self._dead_letter_path}" if self._dead_letter_path else None

    async def connect(self) -> None:
        await self.close()
        try:
            # The SDK takes a second to import.
            await asyncio.to_thread(importlib.import_module, "google.pubsub_v1")
        except ImportError as error:
            raise SourceUnavailable(
                f"the Pub/Sub client is not installed ({error}); install airflow-provider-sharedstream[pubsub]"
            ) from error
        try:
            await self._connect()
        except Exception as error:
            raise await self._clear(error) from error

    async def _connect(self) -> None:
        access = await google_access(
            self._gcp_conn_id, self._impersonation_chain, needs_credentials=emulator_address() is None
        )
        self._credentials = access.credentials
        project = self._project or access.project
        self._path = full_name("subscriptions", self._subscription, project, self._who)
        self._dead_letter_path = ""
        client = self._client = PubSubClient(access.credentials, self._endpoint)
        found = self._found = await look_at_subscription(client, self._path, self._where)
        self.capabilities = _capabilities(by_policy=bool(found.policy_topic))
        if self._dead_letter_topic:
            self._dead_letter_path = full_name("topics", self._dead_letter_topic, project, self._who)
            await check_dead_letter_topic(client, self._dead_letter_path, found, self._who)
        elif found.policy_topic:
            log.info(
                "%s: what is rejected is released until the subscription's policy moves it to %s, after %d attempts. "
                "With dead_letter_topic it goes there at once, with its reason.",
                self._path,
                found.policy_topic,
                found.policy_attempts,
            )
        self._releases.forget()
        self._stream = PullStream(
            client,
            self._path,
            lease_seconds=self._lease_seconds,
            max_messages=self._max_in_flight,
            max_bytes=64 * 1024 * 1024 if self.lane_owner is None else self.lane_owner.max_in_flight_bytes,
        )

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        most = min(max_messages, self.limits.receive_batch)
        stream = self._stream
        try:
            if stream is None:
                return await self._pull(most)
            self._make_room(stream)
            return await self._take(stream, most)
        except Exception as error:
            if stream is not None and stream is self._stream and code_of(error) in STREAMING_REFUSED:
                log.info("%s can't be streamed from and is polled from now on: %s", self._path, error)
                self._stream = None
                await stream.close()
                return []
            raise await self._clear(error) from error

    async def _take(self, stream: PullStream, most: int) -> list[Delivery]:
        client = self._connected()
        taken = await stream.take(most, WAIT_SECONDS)
        exactly_once, ordered = stream.properties
        now = time.monotonic()
        # With exactly-once delivery the service says of each whether it is really ours.
        unsure = [held for held in taken if exactly_once or now - held.since > FRESH * self._lease_seconds]
        if unsure:
            try:
                failures = await client.set_deadline(self._path, ack_ids(unsure), self._lease_seconds)
            except BaseException:
                stream.put_back(taken)
                raise
            lost = {ack_id for ack_id, error in failures.items() if isinstance(error, LeaseLost)}
            taken = [held for held in taken if held.received.ack_id not in lost]
            for held in unsure:
                if held.received.ack_id not in failures:
                    held.since = now
            now = time.monotonic()
        return [self._delivery(held, ordered, self._lease_seconds - (now - held.since)) for held in taken]

    async def _pull(self, most: int) -> list[Delivery]:
        asked_at = time.monotonic()
        pulled = await self._connected().pull(self._path, most, WAIT_SECONDS)
        # Whatever it is that was waited for: a lease can't have begun before.
        lease_seconds = max(1.0, self._found.ack_deadline_seconds - (time.monotonic() - asked_at))
        return [self._delivery(Held(received, asked_at), self._found.ordered, lease_seconds) for received in pulled]

    def _delivery(self, held: Held, ordered: bool, lease_seconds: float) -> Delivery:
        delivery = delivery_of(held.received, self.stream, size=held.size, ordered=ordered, lease_seconds=lease_seconds)
        if delivery.delivery_count and not self.capabilities.delivery_count:
            # A policy that we couldn't look at, or that is new.
            self.capabilities = _capabilities(by_policy=True)
        return delivery

    def _make_room(self, stream: PullStream) -> None:
        """See to it that what waits for the end of its delay doesn't use up what the service lets us have."""
        if 2 * self._releases.waiting > self._max_in_flight:
            self._releases.forget()
            stream.reopen()

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        client = self._connected()
        try:
            if disposition is Disposition.ACCEPT:
                return _by_delivery(deliveries, await client.acknowledge(self._path, _ack_ids(deliveries)))
            if disposition is Disposition.RELEASE:
                failures = await self._releases.release(client, self._path, deliveries)
                clearer = {error: await self._clear(error) for error in set(failures.values())}
                return {delivery: clearer[error] for delivery, error in failures.items()}
        except Exception as error:
            raise await self._clear(error) from error
        raise NotImplementedError(f"Pub/Sub has no {disposition.value}")

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        failures: dict[Delivery, BaseException] = {}
        for request in in_requests(copies_of(deliveries, self.identity)):
            try:
                await self._connected().publish(self._dead_letter_path, [copy.message for copy in request])
            except Exception as error:
                clearer = await self._clear(error, f"dead_letter_topic={self._dead_letter_topic!r}")
                failures.update((copy.delivery, clearer) for copy in request)
        return failures

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        client = self._connected()
        try:
            failures = await client.set_deadline(self._path, _ack_ids(deliveries), self._lease_seconds)
        except Exception as error:
            raise await self._clear(error) from error
        lost: list[Delivery] = []
        for delivery, why in _by_delivery(deliveries, failures).items():
            if not isinstance(why, LeaseLost):
                # All are tried again, before they run out.
                raise why
            lost.append(delivery)
        return lost

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        client, self._client = self._client, None
        try:
            if stream is not None:
                await stream.close()
        finally:
            if client is not None:
                await client.close()

    @property
    def _max_in_flight(self) -> int:
        return 1_000 if self.lane_owner is None else self.lane_owner.max_in_flight

    @property
    def _where(self) -> str:
        return f"subscription={self._path or self._subscription!r}"

    @property
    def _who(self) -> str:
        return f"gcp_conn_id={self._gcp_conn_id!r}"

    def _connected(self) -> PubSubClient:
        if self._client is None:
            raise NotConnected("not connected to Pub/Sub")
        return self._client

    async def _clear(self, error: BaseException, where: str | None = None) -> BaseException:
        """Return ``error``, or one that says what to change where somebody has to change something."""
        if PLUGIN_FAILED in str(error):
            refusal = await refusal_of(self._credentials)
            return error if refusal is None else SourceUnavailable(f"{self._where}: {self._who}: {refusal}")
        if code_of(error) == "INTERNAL" and self._client is not None:
            # What grpc.aio makes of a stream that is refused while it writes.
            try:
                await self._client.look_at_subscription(self._path)
            except Exception as reason:
                if code_of(reason) in ("NOT_FOUND", "UNAUTHENTICATED"):
                    error = reason
        return clear(error, where or self._where, self._who)


class PubSubSharedStreamProducer(BrokerStreamProducer):
    """The stream of a Pub/Sub subscription."""

    consumer_class = PubSubConsumer


def _capabilities(*, by_policy: bool) -> Capabilities:
    """Return the capabilities.

    :param by_policy: whether the subscription has a dead-letter policy: then the service counts, and moves by itself
        what was released too often.
    """
    return Capabilities(
        ordered_lanes=True,
        rewinds=True,
        stragglers=True,
        dead_letters_releases=by_policy,
        delivery_count=by_policy,
        dead_letters_by="dead_letter_topic or the subscription's dead-letter policy",
    )


def _ack_ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [delivery.handle for delivery in deliveries]


def _by_delivery(deliveries: Sequence[Delivery], by_ack_id: dict[str, BaseException]) -> dict[Delivery, BaseException]:
    if not by_ack_id:
        return {}
    return {delivery: by_ack_id[delivery.handle] for delivery in deliveries if delivery.handle in by_ack_id}

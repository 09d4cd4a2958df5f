"""Azure Service Bus: queues, subscriptions of topics, their dead letters, and sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.service_bus.delivery import Held, delivery_of, seconds_until
from airflow_provider_sharedstream.brokers.service_bus.errors import NotConnected, Places, clock_is_off, is_transient
from airflow_provider_sharedstream.brokers.service_bus.link import Link
from airflow_provider_sharedstream.brokers.service_bus.sessions import Sessions
from airflow_provider_sharedstream.connections.azure import ServiceBusAccess, service_bus_access
from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

BATCH = 100
"""Messages of one receive and of one settle call. Service Bus sets no limit: a receive is credit for so many messages,
and each is settled by itself.
"""
PARALLEL_SETTLES = 4
WAIT_SECONDS = 20.0
LOCK_SECONDS = 60.0
"""Taken for an entity's lock duration until a message tells it; Service Bus's default."""
LONGEST_LOCK_SECONDS = 300.0
"""Most that an entity's lock duration may be."""
SESSION_PREFETCH = 50
"""Without it, the SDK gives back what comes while nobody receives, and what comes next overtakes it. The session's lock
covers what was prefetched.
"""
MOST_OPEN_IN_A_SESSION = 1000
"""Where no machine sets a limit."""
DEFAULT_DOMAIN = ".servicebus.windows.net"


class ServiceBusConsumer:
    """One entity. The arguments are those of :class:`ServiceBusSharedStreamTrigger`."""

    source = "service_bus"

    def __init__(
        self,
        queue_name: str | None = None,
        topic_name: str | None = None,
        subscription_name: str | None = None,
        azure_service_bus_conn_id: str = "azure_service_bus_default",
        session_enabled: bool = False,
        sub_queue: str | None = None,
        max_concurrent_sessions: int = 8,
    ) -> None:
        self._conn_id = azure_service_bus_conn_id
        self._sub_queue = sub_queue
        self._max_concurrent_sessions = max_concurrent_sessions
        given = {"queue_name": queue_name, "topic_name": topic_name, "subscription_name": subscription_name}
        self._entity: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self._place: dict[str, str] = {name.removesuffix("_name"): str(value) for name, value in self._entity.items()}
        if sub_queue is not None:
            self._place["sub_queue"] = sub_queue
        self.stream = "/".join(self._place.values())
        self.lane_owner: LaneOwner | None = None
        self.capabilities = Capabilities(
            ordered_lanes=session_enabled,
            # A session is given back whole.
            rewinds=session_enabled,
            delayed_release=False,
            native_dead_letter=True,
            durable_handles=not session_enabled,
        )
        self._session_enabled = session_enabled
        self._lock_seconds = LOCK_SECONDS
        self._access: ServiceBusAccess | None = None
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._sessions: Sessions | None = None

    @property
    def identity(self) -> str:
        namespace = self._conn_id if self._access is None else self._access.namespace
        # Names are case-insensitive.
        return f"service_bus:{namespace}/{self.stream}".lower()

    @property
    def limits(self) -> BrokerLimits:
        return BrokerLimits(
            receive_batch=BATCH,
            settle_batch=BATCH,
            lease_seconds=self._lock_seconds,
            parallel_settles=PARALLEL_SETTLES,
        )

    @property
    def dead_letter_place(self) -> str | None:
        # Service Bus has no place behind its dead letters.
        return f"the dead-letter queue of {self.stream}" if self._sub_queue is None else None

    async def connect(self) -> None:
        await self.close()
        access = self._access = await service_bus_access(self._conn_id)
        try:
            if self._session_enabled:
                self._sessions = Sessions(
                    self._session_link,
                    self._max_concurrent_sessions,
                    self.lane_owner.max_in_flight if self.lane_owner else MOST_OPEN_IN_A_SESSION,
                    self._session_lost,
                )
                await self._sessions.connect()
            else:
                await self._usable_link()
        except Exception as error:
            raise self._clear(error) from error
        if self._access is not access:
            raise NotConnected("closed while connecting")

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        try:
            if self._sessions is not None:
                return await self._receive_from(self._sessions, max_messages)
            link = self._link
            if link is None:
                raise NotConnected("not connected to Service Bus")
            messages = await link.receive(min(max_messages, BATCH), WAIT_SECONDS)
        except Exception as error:
            raise self._clear(error) from error
        left = [seconds_until(message.locked_until_utc) for message in messages]
        if messages and max(left) <= 0:
            raise clock_is_off(max(left))
        self._learn(max(left, default=0.0))
        return [
            delivery_of(Held(link, message), self._place, self._namespace, lease_seconds=seconds)
            for message, seconds in zip(messages, left, strict=True)
            if seconds > 0
        ]

    async def _receive_from(self, sessions: Sessions, max_messages: int) -> list[Delivery]:
        deliveries: list[Delivery] = []
        for session, message in await sessions.receive(min(max_messages, BATCH), WAIT_SECONDS):
            held = Held(session.link, message, session)
            delivery = delivery_of(held, self._place, self._namespace, lease_seconds=session.seconds_left)
            session.open.add(delivery)
            deliveries.append(delivery)
            self._learn(session.lock_seconds)
        return deliveries

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        try:
            if self._sessions is not None:
                failures = await self._sessions.settle(disposition, deliveries)
            else:
                link = await self._usable_link()
                failures = await link.settle(disposition, deliveries)
        except Exception as error:
            raise self._clear(error) from error
        return {delivery: self._clear(error) for delivery, error in failures.items()}

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        return NO_FAILURES

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        try:
            if self._sessions is not None:
                return await self._sessions.renew(deliveries)
            link = await self._usable_link()
            return await link.renew(deliveries)
        except Exception as error:
            raise self._clear(error) from error

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    async def close(self) -> None:
        access, self._access = self._access, None
        link, self._link = self._link, None
        sessions, self._sessions = self._sessions, None
        try:
            if sessions is not None:
                await sessions.close()
            if link is not None:
                await link.close()
        finally:
            if access is not None:
                await access.close()

    async def _usable_link(self) -> Link:
        """Return the link; where it has broken, another: what is locked can be settled and renewed over that, too."""
        async with self._opening:
            access, link = self._access, self._link
            if access is None:
                raise NotConnected("not connected to Service Bus")
            if link is not None and link.trouble is None:
                return link
            if link is not None:
                await link.close()
            link = Link(self._receiver(access), self.identity)
            await link.open()
            if self._access is not access:
                await link.close()
                raise NotConnected("closed meanwhile")
            self._link = link
            return link

    def _session_link(self, seconds: float) -> Link:
        if self._access is None:
            raise NotConnected("not connected to Service Bus")
        from azure.servicebus import NEXT_AVAILABLE_SESSION

        receiver = self._receiver(
            self._access,
            session_id=NEXT_AVAILABLE_SESSION,
            max_wait_time=seconds,
            prefetch_count=SESSION_PREFETCH,
        )
        return Link(receiver, self.identity, in_order=True)

    def _receiver(self, access: ServiceBusAccess, **options: Any) -> Any:
        make = (
            access.client.get_subscription_receiver
            if "topic_name" in self._entity
            else access.client.get_queue_receiver
        )
        try:
            return make(**self._entity, sub_queue=self._sub_queue, **options)
        except ValueError as error:
            # The connection string is of another entity.
            raise SourceUnavailable(f"{self._places.entity} with {self._places.connection}: {error}") from error

    async def _session_lost(self, session_id: str) -> None:
        if self.lane_owner is not None:
            await self.lane_owner.lanes_revoked(frozenset({session_id}), 0)

    def _learn(self, lock_seconds: float) -> None:
        """Note how long the entity locks: what has just arrived has nearly all of it left."""
        if lock_seconds > 0:
            self._lock_seconds = min(lock_seconds, LONGEST_LOCK_SECONDS)

    @property
    def _namespace(self) -> str:
        return "" if self._access is None else self._access.namespace.removesuffix(DEFAULT_DOMAIN)

    @property
    def _places(self) -> Places:
        entity = {**self._entity, **({} if self._sub_queue is None else {"sub_queue": self._sub_queue})}
        return Places(
            ", ".join(f"{name}={value!r}" for name, value in entity.items()),
            f"azure_service_bus_conn_id={self._conn_id!r}",
            session_enabled=self._session_enabled,
        )

    def _clear(self, error: BaseException) -> Exception:
        if not isinstance(error, Exception):
            raise error
        namespace = "" if self._access is None else self._access.namespace
        return self._places.clear(error, namespace)


class ServiceBusSharedStreamProducer(BrokerStreamProducer):
    """The stream of a Service Bus entity."""

    consumer_class = ServiceBusConsumer

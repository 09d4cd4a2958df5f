"""The adapter.

================  ====================================================
``session``       one connection as a member of a group
``membership``    what is ours in the group: rebalances, positions, commits
``pulse``         whether the brokers still answer, and the lag
``histories``     what tells a repeat from what somebody put back
``topics``        which topics are read, and where a partition begins
``delivery``      a record as a delivery
``dead_letters``  the copy of a rejected record
``client``        stopping a client, asking why it can't connect
``errors``        what Kafka's errors mean
``log``           keeps aiokafka's log short
================  ====================================================
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Collection, Sequence
from typing import Any, Literal, cast

from airflow_provider_sharedstream.brokers.kafka import errors as kafka_errors
from airflow_provider_sharedstream.brokers.kafka.dead_letters import DeadLetters
from airflow_provider_sharedstream.brokers.kafka.delivery import KafkaDelivery, deliveries_of
from airflow_provider_sharedstream.brokers.kafka.errors import NotConnected
from airflow_provider_sharedstream.brokers.kafka.session import KafkaSession, unique_instance
from airflow_provider_sharedstream.brokers.kafka.topics import Beginnings, Topics
from airflow_provider_sharedstream.connections.kafka import KafkaSettings, OffsetReset, kafka_settings
from airflow_provider_sharedstream.stream.consumer import (
    NO_FAILURES,
    BrokerLimits,
    Capabilities,
    Failures,
    LaneOwner,
)
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

log = logging.getLogger(__name__)

RECEIVE_BATCH = 1_000
"""Most records in one receive. Kafka has no such limit; aiokafka fetches up to ``max.partition.fetch.bytes`` (1 MiB)
of each partition ahead.
"""
SETTLE_BATCH = 10_000
"""Most deliveries in one settlement: one commit holds an offset for each partition, however many lie before it."""


class KafkaConsumer:
    """One member of one group. The arguments are those of :class:`KafkaSharedStreamTrigger`."""

    source = "kafka"

    def __init__(
        self,
        topics: Sequence[str],
        kafka_config_id: str = "kafka_default",
        group_id: str | None = None,
        auto_offset_reset: OffsetReset | None = None,
        dead_letter_topic: str | None = None,
        missing_topics: Literal["fail", "wait"] = "fail",
    ) -> None:
        names = [topics] if isinstance(topics, str) else [str(topic) for topic in topics]
        self.stream = ",".join(sorted(set(names)))
        self.lane_owner: LaneOwner | None = None
        self.capabilities = Capabilities(
            ordered_lanes=True,
            rewinds=True,
            delivery_count=False,
            durable_handles=False,
            dead_letters_by="dead_letter_topic",
        )
        self.limits = BrokerLimits(receive_batch=RECEIVE_BATCH, settle_batch=SETTLE_BATCH)
        self.dead_letter_place = None if dead_letter_topic is None else f"topic {dead_letter_topic}"
        self.topics: Topics | None = None
        self._names = names
        self._kafka_config_id = kafka_config_id
        self._group_id = group_id
        self._auto_offset_reset = auto_offset_reset
        self._dead_letter_topic = dead_letter_topic
        self._wait_for_topics = missing_topics == "wait"
        self._metrics = StreamMetrics(self.source, self.stream)
        self._settings: KafkaSettings | None = None
        self._beginnings: Beginnings | None = None
        self._instance: str | None = None
        self._warned = False
        self._session: KafkaSession | None = None
        self._dead_letters: DeadLetters | None = None

    @property
    def identity(self) -> str:
        return f"kafka:{self.cluster}:{self.group}:{self.stream}"

    @property
    def cluster(self) -> str:
        """The brokers' addresses; before the first :meth:`connect`, the connection's id."""
        if self._settings is None:
            return self._kafka_config_id
        return ",".join(sorted(str(self._settings.client["bootstrap_servers"]).replace(" ", "").split(",")))

    @property
    def group(self) -> str:
        """The group's id; before the first :meth:`connect`, the argument's."""
        return (self._settings.group_id if self._settings else self._group_id) or ""

    async def connect(self) -> None:
        await self.close()
        settings = self._settings = await kafka_settings(
            self._kafka_config_id, group_id=self._group_id, auto_offset_reset=self._auto_offset_reset
        )
        self._prepare(settings)
        try:
            await self._open(settings)
        except Exception as error:
            raise self._clear(error) from error

    def _prepare(self, settings: KafkaSettings) -> None:
        """Do what is done once for all connections of the stream."""
        try:
            self.topics = self.topics or Topics(self._names)
        except ValueError as error:
            raise SourceUnavailable(f"topics={self._names!r}: {error}") from None
        if self._dead_letter_topic is not None and self._dead_letter_topic in self.topics:
            raise SourceUnavailable(
                f"dead_letter_topic={self._dead_letter_topic!r} is one of the topics that are read: a rejected record "
                "would come back for ever"
            )
        self._beginnings = self._beginnings or Beginnings(settings.auto_offset_reset)
        if self._instance is None and (given := settings.consumer.get("group_instance_id")) is not None:
            self._instance = unique_instance(given)
        if not self._warned and settings.without_effect:
            keys = ", ".join(settings.without_effect)
            log.warning("kafka_config_id=%r: keys without effect here: %s", self._kafka_config_id, keys)
        self._warned = True

    async def _open(self, settings: KafkaSettings) -> None:
        assert self.topics is not None
        assert self._beginnings is not None
        _claim(self)
        session = self._session = KafkaSession(
            settings,
            self.topics,
            self._beginnings,
            dead_letter_topic=self._dead_letter_topic,
            wait_for_topics=self._wait_for_topics,
            instance=self._instance,
            owner=lambda: self.lane_owner,
            stream_metrics=self._metrics,
        )
        await session.open()
        if self._dead_letter_topic is not None:
            self._dead_letters = DeadLetters(self._dead_letter_topic, settings, self._clear)
            await self._dead_letters.open()

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        try:
            session = self._connected()
            found = await session.poll(max_messages)
        except Exception as error:
            raise self._clear(error) from error
        history = session.membership.history
        made = [one for lane, records in found.items() for one in deliveries_of(lane, records, history(lane))]
        return cast("list[Delivery]", made)

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        session = self._session
        if session is None or session.broken is not None:
            return dict.fromkeys(deliveries, LeaseLost("the group has been left"))
        if disposition is Disposition.RELEASE:
            return self._rewind(session, cast("Sequence[KafkaDelivery]", deliveries))
        if disposition is not Disposition.ACCEPT:
            raise NotImplementedError(f"Kafka has no {disposition.value}")
        # They come in the order of their lanes, so what stays is the last of each.
        last = {delivery.lane: delivery for delivery in cast("Sequence[KafkaDelivery]", deliveries)}
        offsets = {lane: delivery.offset + 1 for lane, delivery in last.items()}
        lost_lanes = {lane for lane in offsets if not session.membership.history(lane)}
        try:
            await session.membership.commit(offsets)
        except Exception as error:
            raise self._clear(error) from error
        if not lost_lanes:
            return NO_FAILURES
        lost = LeaseLost("the partition is somebody else's")
        return {delivery: lost for delivery in deliveries if delivery.lane in lost_lanes}

    def _rewind(self, session: KafkaSession, deliveries: Sequence[KafkaDelivery]) -> Failures:
        first: dict[Any, KafkaDelivery] = {}
        for delivery in deliveries:
            known = first.get(delivery.lane)
            if known is None or delivery.offset < known.offset:
                first[delivery.lane] = delivery
        for lane, delivery in first.items():
            session.membership.rewind(lane, delivery.offset, delivery.release_delay_seconds)
        return NO_FAILURES

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        if self._dead_letters is None:
            raise NotConnected("not connected to Kafka")
        failures = await self._dead_letters.store(cast("Sequence[KafkaDelivery]", deliveries))
        return cast("Failures", failures)

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        return ()

    def is_transient(self, error: BaseException) -> bool:
        return kafka_errors.is_transient(error)

    async def close(self) -> None:
        session, self._session = self._session, None
        dead_letters, self._dead_letters = self._dead_letters, None
        _CONNECTED.discard(self)
        try:
            if session is not None:
                await session.close()
        finally:
            if dead_letters is not None:
                await dead_letters.close()

    def _connected(self) -> KafkaSession:
        if self._session is None:
            raise NotConnected("not connected to Kafka")
        return self._session

    def _clear(self, error: Exception) -> Exception:
        return kafka_errors.clear(error, where=f"kafka_config_id={self._kafka_config_id!r}", group_id=self.group)


_CONNECTED: weakref.WeakSet[KafkaConsumer] = weakref.WeakSet()


def _claim(consumer: KafkaConsumer) -> None:
    """Keep two streams of one process out of one topic by one group: each would hide messages from the other's
    watchers. Where their topics are the same, the machine itself makes the second wait.
    """
    for other in _CONNECTED:
        same_group = other.cluster == consumer.cluster and other.group == consumer.group
        if other is consumer or not same_group or other.stream == consumer.stream:
            continue
        if other.topics is not None and consumer.topics is not None and consumer.topics.overlap(other.topics):
            raise SourceUnavailable(
                f"topics={consumer.stream!r} with group_id={consumer.group!r}: another stream here reads "
                f"{other.stream!r} in this group, and each would hide messages from the other's watchers. Give all "
                "watchers the same topics, or one of them another group_id."
            )
    _CONNECTED.add(consumer)


class KafkaSharedStreamProducer(BrokerStreamProducer):
    """The stream of a group's topics."""

    consumer_class = KafkaConsumer

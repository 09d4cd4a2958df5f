"""One connection to Kafka as a member of a group: joining, polling, watching over it, leaving."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.kafka_client import stopped, why_unreachable
from airflow_provider_sharedstream.brokers.kafka_errors import ClientBroken, LostContact, NotConnected, text
from airflow_provider_sharedstream.brokers.kafka_membership import Membership, Phase
from airflow_provider_sharedstream.brokers.kafka_topics import Beginnings, Topics
from airflow_provider_sharedstream.connections.kafka import KafkaSettings
from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.consumer import LaneOwner
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.metrics import StreamMetrics

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long a poll waits when there is nothing."""
SLACK_SECONDS = 1.0
"""How much longer it may take: aiokafka waits without a limit for a rebalance to end."""
PULSE_SECONDS = 10.0
"""How often the brokers are asked where partitions end: for the lag, and to see that they answer."""
PULSE_LIMIT_SECONDS = 8.0
SILENCE_SECONDS = 15.0
"""How much longer than a session the brokers may be silent before everything begins anew."""
NO_LIMIT_MS = 2**31 - 1
"""aiokafka's limit of the time between two polls, after which it leaves the group. A full budget polls nothing, and is
no reason to leave.
"""

RECORDS = Mapping[Any, Sequence[Any]]
_INSTANCES = itertools.count()


def unique_instance(given: str) -> str:
    """Return an id for static membership that no other stream has, in this process or another: two members with one id
    would take the group from each other for ever.
    """
    return f"{given}-{socket.gethostname()}-{os.getpid()}-{next(_INSTANCES)}"


class KafkaSession:
    """From joining a group to leaving it.

    :param settings: the connection's.
    :param topics: what is read.
    :param beginnings: where a partition begins that has no offset.
    :param dead_letter_topic: has to be there; None: there is none.
    :param wait_for_topics: whether a topic that isn't there is waited for, or an error.
    :param instance: id of a static member, or None.
    :param owner: returns who is told of lost lanes, or None.
    :param stream_metrics: takes the lag.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topics: Topics,
        beginnings: Beginnings,
        *,
        dead_letter_topic: str | None,
        wait_for_topics: bool,
        instance: str | None,
        owner: Callable[[], LaneOwner | None],
        stream_metrics: StreamMetrics,
    ) -> None:
        from aiokafka import AIOKafkaConsumer
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        self._settings = settings
        self._topics = topics
        self._beginnings = beginnings
        self._dead_letter_topic = dead_letter_topic
        self._wait_for_topics = wait_for_topics
        self._metrics = stream_metrics
        given = dict(settings.consumer)
        assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
        given["partition_assignment_strategy"] = (assignors[given["partition_assignment_strategy"]],)
        given["group_instance_id"] = instance
        self._consumer = AIOKafkaConsumer(
            **settings.client,
            **given,
            group_id=settings.group_id,
            # Commits follow what is stored; where to begin is our decision.
            enable_auto_commit=False,
            auto_offset_reset="none",
            max_poll_interval_ms=NO_LIMIT_MS,
        )
        self.membership = Membership(self._consumer, owner)
        self._heard_at = time.monotonic()
        self._silence = ""
        self._pulse: asyncio.Task[None] | None = None
        self._absent_since: float | None = None
        self.broken: Exception | None = None
        """Why nothing will come any more."""

    async def open(self) -> None:
        """Join the group, and wait for the first assignment.

        :raises SourceUnavailable: somebody has to change something.
        """
        from aiokafka.errors import KafkaConnectionError

        try:
            await self._consumer.start()
        except (KafkaConnectionError, ValueError) as error:
            raise await why_unreachable(self._settings.client) from error
        if not self._consumer._client.cluster.brokers():
            # A refused token looks like consent to aiokafka, and the connection is closed.
            raise await why_unreachable(self._settings.client)
        cluster = await self._consumer._client.fetch_all_metadata()
        partitions = {topic: cluster.partitions_for_topic(topic) or () for topic in cluster.topics()}
        self._check_topics(partitions)
        await self._beginnings.look(self._consumer, {t: found for t, found in partitions.items() if t in self._topics})
        listener = self.membership.listener()
        if (pattern := self._topics.pattern) is not None:
            self._consumer.subscribe(pattern=pattern, listener=listener)
        else:
            self._consumer.subscribe(topics=sorted(self._topics.literal), listener=listener)
        await self._wait_joined()
        self._pulse = asyncio.create_task(self._keep_pulse(), name="sharedstream-kafka-pulse")

    def _check_topics(self, there: Collection[str]) -> None:
        missing = self._topics.missing(there)
        hint = "there is no such topic, or the connection's user may not see it. Create it, correct the name"
        if missing and not self._wait_for_topics:
            raise SourceUnavailable(
                f"topics={missing!r}: {hint}, or set missing_topics='wait', which reads the others and waits for it."
            )
        if missing:
            log.warning("topics=%r: not there yet; they are read from when they are", missing)
        if self._dead_letter_topic is not None and self._dead_letter_topic not in there:
            raise SourceUnavailable(f"dead_letter_topic={self._dead_letter_topic!r}: {hint}.")

    async def _wait_joined(self) -> None:
        from aiokafka import TopicPartition

        # What ends the wait with an error is told to who polls. A partition that isn't ours gives no record.
        nothing = TopicPartition("", -1)
        consumer = self._settings.consumer
        limit = (consumer["session_timeout_ms"] + consumer["rebalance_timeout_ms"]) / 1000 + SLACK_SECONDS
        joining = asyncio.create_task(self._consumer.getmany(nothing), name="sharedstream-kafka-join")
        try:
            await asyncio.wait({joining}, timeout=limit)
        finally:
            if not joining.done():
                joining.cancel()
        if joining.done():
            joining.result()
        if not await self.membership.wait_assigned(SLACK_SECONDS):
            raise LostContact(f"the group's coordinator has assigned nothing for {limit:g} s")

    async def poll(self, most: int) -> RECORDS:
        """Return up to ``most`` records by lane, in order; wait a second when there are none."""
        self._check()
        from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

        try:
            found = await self._getmany(most, self.membership.resume_due(WAIT_SECONDS))
            if found:
                self._heard_at = time.monotonic()
                self.membership.handed_out(found)
        except NoOffsetForPartitionError:
            await self._place()
            return {}
        except OffsetOutOfRangeError as error:
            await self._beginnings.return_to_range(self._consumer, error.args[0], self.membership.seek)
            return {}
        except Exception as error:
            # aiokafka would say the same again at once, for ever.
            self.broken = error
            raise
        return found

    async def _getmany(self, most: int, wait_seconds: float) -> RECORDS:
        polling = asyncio.create_task(
            self._consumer.getmany(timeout_ms=int(wait_seconds * 1000), max_records=most),
            name="sharedstream-kafka-poll",
        )
        try:
            await asyncio.wait({polling}, timeout=wait_seconds + SLACK_SECONDS)
        except asyncio.CancelledError:
            if polling.done() and not polling.cancelled() and polling.exception() is None:
                # Nobody takes them any more: they shall come again.
                for lane, records in polling.result().items():
                    self.membership.seek(lane, records[0].offset)
            raise
        finally:
            polling.cancel()
        found: RECORDS = polling.result() if polling.done() else {}
        return found

    async def _place(self) -> None:
        lanes = self.membership.unplaced()
        committed = await self._consumer._coordinator.fetch_committed_offsets(lanes)
        if without := [lane for lane in lanes if lane not in committed]:
            await self._beginnings.place(self._consumer, without, self.membership.seek, self.membership.commit)

    def _check(self) -> None:
        """Raise what makes it useless to poll."""
        if self.membership.phase is Phase.OUT:
            raise NotConnected("not connected to Kafka")
        if self.broken is None and self._consumer._fetcher.error_future.done():
            self.broken = ClientBroken("aiokafka's fetching task has died")
        if self.broken is not None:
            raise self.broken
        now = time.monotonic()
        session_seconds = self._settings.consumer["session_timeout_ms"] / 1000
        if now - self._heard_at > session_seconds + SILENCE_SECONDS:
            self.broken = LostContact(f"no broker has answered for {now - self._heard_at:.0f} s{self._silence}")
            raise self.broken
        joining = self.membership.phase is not Phase.MEMBER
        rebalance_seconds = self._settings.consumer["rebalance_timeout_ms"] / 1000
        if joining and now - self.membership.phase_since > session_seconds + rebalance_seconds + SILENCE_SECONDS:
            self.broken = LostContact("a rebalance of the group does not end")
            raise self.broken
        if self._absent_since is not None and now - self._absent_since > SILENCE_SECONDS:
            self._check_topics({t for t in self._topics.literal if self._consumer.partitions_for_topic(t) is not None})

    async def _keep_pulse(self) -> None:
        """Ask from time to time, also while nobody polls: the machine doesn't when enough is in flight."""
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            try:
                await asyncio.wait_for(self._ask(), PULSE_LIMIT_SECONDS)
                self._heard_at = time.monotonic()
                self._silence = ""
            except Exception as error:
                self._silence = f" ({text(error)})"
                log.debug("Kafka's pulse: %s", text(error))

    async def _ask(self) -> None:
        from aiokafka import TopicPartition

        known = {topic: self._consumer.partitions_for_topic(topic) for topic in self._topics.literal}
        absent = not self._wait_for_topics and any(numbers is None for numbers in known.values())
        self._absent_since = (self._absent_since or time.monotonic()) if absent else None
        lanes = list(self.membership.lanes)
        if not lanes:
            # No partition is left for us: any will do to see that somebody answers.
            lanes = [TopicPartition(topic, min(numbers)) for topic, numbers in known.items() if numbers][:1]
        if not lanes:
            await self._consumer._client.fetch_all_metadata()
            return
        ends = await self._consumer.end_offsets(lanes)
        for lane in self.membership.lanes.intersection(ends):
            waiting = max(0, ends[lane] - await self._consumer.position(lane))
            self._metrics.gauge(metrics.LAG, waiting, lane=f"{lane.topic}-{lane.partition}")

    async def close(self) -> None:
        """Leave the group and let go of everything. Idempotent; works while a poll waits."""
        self.membership.left()
        if self._pulse is not None:
            self._pulse.cancel()
            self._pulse = None
        await stopped(self._consumer, self._consumer._client)

"""One connection to Kafka: connecting, joining the group, polling, leaving."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import logging
import os
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.kafka.client import stopped, why_unreachable
from airflow_provider_sharedstream.brokers.kafka.errors import (
    ClientBroken,
    LostContact,
    NoReport,
    NotConnected,
    Rebalancing,
)
from airflow_provider_sharedstream.brokers.kafka.histories import history_of
from airflow_provider_sharedstream.brokers.kafka.log import calm
from airflow_provider_sharedstream.brokers.kafka.membership import Membership, Phase
from airflow_provider_sharedstream.brokers.kafka.pulse import Pulse
from airflow_provider_sharedstream.brokers.kafka.topics import Beginnings, Topics
from airflow_provider_sharedstream.connections.kafka import KafkaSettings
from airflow_provider_sharedstream.stream.consumer import LaneOwner
from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text
from airflow_provider_sharedstream.stream.metrics import StreamMetrics

log = logging.getLogger(__name__)

WAIT_SECONDS = 1.0
"""How long a poll waits when there is nothing."""
SLACK_SECONDS = 1.0
"""How much longer it may take: aiokafka waits without a limit for a rebalance to end."""
PLACE_SECONDS = 10.0
"""How long the brokers may take to say where a partition begins."""
MOST_PLACEMENTS = 100
"""How often in a row partitions may be without a place to begin."""
NO_LIMIT_MS = 2**31 - 1
"""aiokafka's limit of the time between two polls, after which it leaves the group. A full budget polls nothing, and is
no reason to leave.
"""

NO_SUCH_TOPIC = "there is no such topic, or the connection's user may not see it. Create it, correct the name"

RECORDS = Mapping[Any, Sequence[Any]]
_INSTANCES = itertools.count()


def unique_instance(given: str) -> str:
    """Return an id for static membership that no other stream has, in this process or another: two members with one id
    would take the group from each other for ever.
    """
    return f"{given}-{socket.gethostname()}-{os.getpid()}-{next(_INSTANCES)}"


class KafkaSession:
    """From connecting to leaving the group.

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

        calm()
        self._settings = settings
        self._topics = topics
        self._beginnings = beginnings
        self._dead_letter_topic = dead_letter_topic
        self._wait_for_topics = wait_for_topics
        given = dict(settings.consumer)
        assignors = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor}
        given["partition_assignment_strategy"] = (assignors[given["partition_assignment_strategy"]],)
        given["group_instance_id"] = instance
        if "client_rack" not in inspect.signature(AIOKafkaConsumer).parameters and given.pop("client_rack", None):
            log.warning("client.rack needs aiokafka 0.14; what is nearest is not preferred")
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
        self._pulse = Pulse(self._consumer, topics, self.membership, settings.consumer, stream_metrics)
        self._placements = 0
        self._subscribed = False
        self._joined = False
        self.broken: Exception | None = None
        """Why nothing will come any more."""

    async def open(self) -> None:
        """Connect, and look whether everything is there.

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

    async def join(self) -> None:
        """Join the group, and wait for the first assignment.

        The first poll does it: a stream that waits for another one on the same source takes no partition meanwhile.
        """
        if self._joined:
            return
        if not self._subscribed:
            # Once: a second time may end aiokafka's fetching.
            self._subscribed = True
            listener = self.membership.listener()
            if (pattern := self._topics.pattern) is not None:
                self._consumer.subscribe(pattern=pattern, listener=listener)
            else:
                self._consumer.subscribe(topics=sorted(self._topics.literal), listener=listener)
        await self._wait_joined()
        self._joined = True
        self._pulse.start()

    def _check_topics(self, there: Collection[str]) -> None:
        self._check_missing(there)
        if missing := self._topics.missing(there):
            log.warning("topics=%r: not there yet; they are read from when they are", missing)
        if self._dead_letter_topic is not None and self._dead_letter_topic not in there:
            raise SourceUnavailable(f"dead_letter_topic={self._dead_letter_topic!r}: {NO_SUCH_TOPIC}.")

    def _check_missing(self, there: Collection[str]) -> None:
        missing = self._topics.missing(there)
        if missing and not self._wait_for_topics:
            raise SourceUnavailable(
                f"topics={missing!r}: {NO_SUCH_TOPIC}, or set missing_topics='wait', which reads the others and waits "
                "for it."
            )

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
            await self.join()
            if self.membership.phase is Phase.MEMBER and self.membership.strangers():
                await self._placed(self._place())
            found = await self._getmany(most, self.membership.resume_due(WAIT_SECONDS))
        except NoOffsetForPartitionError:
            # It is said of one that has its place by now, or gets it in a moment.
            await self._placed(self._place())
            return {}
        except OffsetOutOfRangeError as error:
            await self._placed(self._beginnings.return_to_range(self._consumer, error.args[0], self.membership))
            return {}
        except Exception as error:
            # aiokafka would say the same again at once, for ever.
            self.broken = error
            raise
        self._placements = 0
        # A partition that was lost a moment ago is its next owner's; one that came back meanwhile has yet to be placed.
        found = {lane: records for lane, records in found.items() if self.membership.history(lane)}
        if found:
            self._pulse.heard()
            self.membership.handed_out(found)
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

    async def _placed(self, placing: Coroutine[Any, Any, None]) -> None:
        """Place partitions. aiokafka asks for it without a pause until each has its place."""
        from aiokafka.errors import CommitFailedError, IllegalStateError

        self._placements += 1
        if self._placements > MOST_PLACEMENTS:
            placing.close()
            self.broken = ClientBroken("partitions don't stay where they are told to begin")
            raise self.broken
        try:
            await asyncio.wait_for(placing, PLACE_SECONDS)
        except asyncio.TimeoutError:
            raise NoReport(f"the brokers have not said for {PLACE_SECONDS:g} s where partitions begin") from None
        except (Rebalancing, CommitFailedError, IllegalStateError) as error:
            log.debug("Partitions are placed with the next poll: %s", error_text(error))
        if self._placements > 1:
            await asyncio.sleep(0.1)

    async def _place(self) -> None:
        """Find out where partitions that are new to us go on, and in which history."""
        generation, lanes = self.membership.generation, self.membership.strangers()
        committed = await self._consumer._coordinator.fetch_committed_offsets(lanes)
        if self.membership.generation != generation:
            raise Rebalancing("the group was rebalanced meanwhile")
        fresh: dict[Any, int] = {}
        for lane, at in committed.items():
            if (history := history_of(at)) is None:
                fresh[lane] = at.offset
            else:
                self.membership.place(lane, at.offset, history)
        if without := [lane for lane in lanes if lane not in committed]:
            fresh |= await self._beginnings.of(self._consumer, without)
        if fresh:
            await self.membership.begin(fresh)

    def _check(self) -> None:
        """Raise what makes it useless to poll."""
        if self.membership.phase is Phase.OUT:
            raise NotConnected("not connected to Kafka")
        if self.broken is None and self._consumer._fetcher.error_future.done():
            self.broken = ClientBroken("aiokafka's fetching task has died")
        self.broken = self.broken or self._pulse.trouble
        if self.broken is not None:
            raise self.broken
        if self._pulse.topics_away:
            topics = self._topics.literal
            self._check_missing([topic for topic in topics if self._consumer.partitions_for_topic(topic) is not None])

    async def close(self) -> None:
        """Leave the group and let go of everything. Idempotent; works while a poll waits."""
        self.membership.left()
        self._pulse.stop()
        if self._consumer._coordinator is not None:
            # aiokafka leaves a static member in its place, which nobody will ever take again: its id was ours alone.
            self._consumer._coordinator._group_instance_id = None
        await stopped(self._consumer, self._consumer._client)

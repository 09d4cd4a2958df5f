"""Whether the brokers still answer, and how much waits with them.

A consumer of aiokafka whose brokers are away returns nothing and raises nothing, however long; and while enough is in
flight the machine doesn't even poll. So the brokers are asked from time to time where the partitions end.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from airflow_provider_sharedstream.brokers.kafka.errors import LostContact
from airflow_provider_sharedstream.brokers.kafka.membership import Membership, Phase
from airflow_provider_sharedstream.brokers.kafka.topics import Topics
from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.errors import error_text
from airflow_provider_sharedstream.stream.metrics import StreamMetrics

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
ANSWER_SECONDS = 8.0
LAG_SECONDS = 1.0
SILENCE_SECONDS = 20.0
"""How much longer than a session the brokers may be silent, or a rebalance last, before everything begins anew; and how
long a topic may be away.
"""


class Pulse:
    """Watches over one connection.

    :param consumer: aiokafka's.
    :param topics: what is read.
    :param membership: what is ours.
    :param settings: aiokafka's arguments of the consumer.
    :param stream_metrics: takes the lag.
    """

    def __init__(
        self,
        consumer: Any,
        topics: Topics,
        membership: Membership,
        settings: Mapping[str, Any],
        stream_metrics: StreamMetrics,
    ) -> None:
        self._consumer = consumer
        self._topics = topics
        self._membership = membership
        self._session_seconds = settings["session_timeout_ms"] / 1000
        self._rebalance_seconds = settings["rebalance_timeout_ms"] / 1000
        self._metrics = stream_metrics
        self._task: asyncio.Task[None] | None = None
        self._heard_at = time.monotonic()
        self._trouble = ""
        self._away_since: float | None = None

    def start(self) -> None:
        """Begin."""
        self.heard()
        self._task = asyncio.create_task(self._beat(), name="sharedstream-kafka-pulse")

    def stop(self) -> None:
        """End. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def heard(self) -> None:
        """Note that a broker has answered."""
        self._heard_at = time.monotonic()
        self._trouble = ""

    @property
    def trouble(self) -> Exception | None:
        """Why nothing will come any more, or None."""
        if self._task is None:
            return None
        now = time.monotonic()
        silent = now - self._heard_at
        if silent > self._session_seconds + SILENCE_SECONDS:
            return LostContact(f"no broker has answered for {silent:.0f} s{self._trouble}")
        joining = self._membership.phase is not Phase.MEMBER
        longest = self._session_seconds + self._rebalance_seconds + SILENCE_SECONDS
        if joining and now - self._membership.phase_since > longest:
            return LostContact("a rebalance of the group does not end")
        return None

    @property
    def topics_away(self) -> bool:
        """Whether a topic that is named has been away for a while."""
        return self._away_since is not None and time.monotonic() - self._away_since > SILENCE_SECONDS

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            try:
                ends = await asyncio.wait_for(self._ask(), ANSWER_SECONDS)
                self.heard()
                await asyncio.wait_for(self._report_lag(ends), LAG_SECONDS)
            except Exception as error:
                self._trouble = f" ({error_text(error)})"
                log.debug("Kafka's pulse: %s", error_text(error))

    async def _ask(self) -> Mapping[Any, int]:
        """Return where our partitions end."""
        from aiokafka import TopicPartition

        known = {topic: self._consumer.partitions_for_topic(topic) for topic in self._topics.literal}
        away = any(numbers is None for numbers in known.values())
        self._away_since = (self._away_since or time.monotonic()) if away else None
        lanes = list(self._membership.lanes)
        if not lanes:
            # No partition is left for us: any will do to see that somebody answers.
            lanes = [TopicPartition(topic, min(numbers)) for topic, numbers in known.items() if numbers][:1]
        if not lanes:
            await self._consumer._client.fetch_all_metadata()
            return {}
        ends: Mapping[Any, int] = await self._consumer.end_offsets(lanes)
        return ends

    async def _report_lag(self, ends: Mapping[Any, int]) -> None:
        placed = self._membership.lanes.difference(self._membership.strangers())
        for lane in placed.intersection(ends):
            # aiokafka's own, since it goes over the marks that transactions leave.
            position = await self._consumer.position(lane)
            waiting = max(0, ends[lane] - position)
            self._metrics.gauge(metrics.LAG, waiting, lane=f"{lane.topic}-{lane.partition}")

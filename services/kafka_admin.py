"""Topics, groups and records of a broker as tests, demo and benchmarks use them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
    for_code,
)

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

NOT_YET = (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    KafkaConnectionError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    NotCoordinatorForGroupError,
    RequestTimedOutError,
)
"""What a broker, or the lack of one, says while a topic or a coordinator is being made or moves."""


class Member(NamedTuple):
    """One member of a group."""

    member_id: str
    client_id: str
    host: str


class KafkaAdmin:
    """A client of the plain listener, for `async with`.

    :param bootstrap: addresses, separated by commas.
    """

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._client = AIOKafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=5000)

    async def __aenter__(self) -> Self:
        await self._client.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._client.close()

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replicas: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Raises KafkaError when the broker refuses, and returns when every partition has a leader.

        :param replicas: default: one on each node, at most three.
        :param settings: of the topic, {"cleanup.policy": "compact"} for example.
        """
        if replicas is None:
            replicas = min(3, len((await self._client.describe_cluster())["brokers"]))
        topic = NewTopic(name, partitions, replicas, topic_configs=dict(settings or {}))
        answer = await self._client.create_topics([topic])
        _check((code, f"{name}: {why}") for _, code, why in answer.topic_errors)
        await _patiently(lambda: self._all_led(name, partitions))

    async def delete_topic(self, name: str) -> None:
        answer = await self._client.delete_topics([name])
        _check((error[1], name) for error in answer.topic_error_codes)

    async def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads it; -1 when none does."""
        return (await self._leaders(topic)).get(partition, -1)

    async def coordinator(self, group: str) -> int:
        """The node that coordinates the group."""
        return int(await _patiently(lambda: self._client.find_coordinator(group)))

    async def members(self, group: str) -> list[Member]:
        """Whom the coordinator counts as members now."""

        async def describe() -> list[Member]:
            (answer,) = await self._client.describe_consumer_groups([group])
            (found,) = answer.groups
            _check([(found[0], group)])
            return [Member(str(each[0]), str(each[1]), str(each[2])) for each in found[5]]

        return await _patiently(describe)

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """What the group has committed; a partition without a commit isn't listed."""
        found = await _patiently(lambda: self._client.list_consumer_group_offsets(group))
        return {partition: offset.offset for partition, offset in found.items() if offset.offset >= 0}

    async def ends(self, topic: str) -> dict[TopicPartition, int]:
        """The offset that the next record of each partition will get."""
        async with AIOKafkaConsumer(bootstrap_servers=self.bootstrap) as consumer:
            partitions = [TopicPartition(topic, number) for number in await self._leaders(topic)]
            return dict(await consumer.end_offsets(partitions))

    async def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        *,
        partition: int | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> list[TopicPartition]:
        """Send in batches, wait until all are written, and return where each went.

        :param values: None is a tombstone.
        :param partition: default: by `key`; without one, spread.
        """
        async with AIOKafkaProducer(bootstrap_servers=self.bootstrap, acks="all", linger_ms=5) as producer:
            pending = [
                await producer.send(topic, value, key=key, partition=partition, headers=list(headers))
                for value in values
            ]
            written = [await each for each in pending]
        return [TopicPartition(each.topic, each.partition) for each in written]

    async def _leaders(self, topic: str) -> dict[int, int]:
        (found,) = await _patiently(lambda: self._client.describe_topics([topic]))
        _check([(found["error_code"], topic)])
        return {each["partition"]: each["leader"] for each in found["partitions"]}

    async def _all_led(self, topic: str, partitions: int) -> None:
        try:
            leaders = await self._leaders(topic)
        except UnknownTopicOrPartitionError:
            leaders = {}
        if len(leaders) < partitions or min(leaders.values()) < 0:
            raise LeaderNotAvailableError(topic)


async def _patiently(call: Callable[[], Awaitable[T]], limit_seconds: float = 30.0) -> T:
    """Call until it answers with something else than "not yet"."""
    end = time.monotonic() + limit_seconds
    while True:
        try:
            return await call()
        except NOT_YET:
            if time.monotonic() > end:
                raise
        await asyncio.sleep(0.05)


def _check(errors: Iterable[tuple[Any, str]]) -> None:
    for code, what in errors:
        if code:
            raise for_code(code)(what)

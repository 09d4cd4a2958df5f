"""Which topics are read, and where a partition begins that the group has never committed."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.kafka.membership import Membership
from airflow_provider_sharedstream.connections.kafka import OffsetReset
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

log = logging.getLogger(__name__)


class Topics:
    """The topics of a stream.

    :param names: topics, and patterns: what begins with ``^`` is a regular expression on whole lists of topics, as in
        librdkafka.
    :raises ValueError: a pattern can't be understood.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self.literal = frozenset(name for name in self.names if not name.startswith("^"))
        self._patterns: list[re.Pattern[str]] = []
        for name in self.names:
            if name.startswith("^"):
                try:
                    self._patterns.append(re.compile(name))
                except re.error as error:
                    raise ValueError(f"{name!r} is not a regular expression: {error}") from None

    @property
    def pattern(self) -> str | None:
        """All of them as one expression; None where topics are named only."""
        if not self._patterns:
            return None
        parts = [*(pattern.pattern for pattern in self._patterns), *(f"{re.escape(name)}$" for name in self.literal)]
        return "|".join(f"(?:{part})" for part in parts)

    def __contains__(self, topic: str) -> bool:
        return topic in self.literal or any(pattern.match(topic) for pattern in self._patterns)

    def missing(self, there: Collection[str]) -> list[str]:
        """Return the topics named that aren't among ``there``. A pattern misses nothing."""
        return sorted(self.literal.difference(there))

    def overlap(self, other: Topics) -> bool:
        """Whether a topic may be both's. Two different patterns are taken to match different topics."""
        if any(name in other for name in self.literal) or any(name in self for name in other.literal):
            return True
        return not {p.pattern for p in self._patterns}.isdisjoint(p.pattern for p in other._patterns)


class Beginnings:
    """Where a partition begins for which the group has no offset. It lives as long as the stream, not the connection.

    ``latest`` means: with what is published after the stream has first looked. So the ends of a topic's partitions
    are noted before the group is joined, and committed before a partition is first read, since another end, looked up
    after a restart or by another member, would leave out what came in between. A partition that wasn't there at the
    first look, or of a topic of which the group has committed others, is read from its beginning: all in it is new.

    :param reset: ``earliest``, ``latest``, or ``none``: an error.
    """

    def __init__(self, reset: OffsetReset) -> None:
        self._reset = reset
        self._looked = False
        self._ends: dict[Any, int] = {}

    async def look(self, consumer: Any, partitions: Mapping[str, Collection[int]]) -> None:
        """At the first call, note the ends of topics of which the group has committed nothing yet.

        :param consumer: aiokafka's, started.
        :param partitions: of each topic.
        """
        if self._reset != "latest" or self._looked:
            return
        from aiokafka import TopicPartition

        lanes = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        if lanes:
            committed = await consumer._coordinator.fetch_committed_offsets(lanes)
            known = {lane.topic for lane in committed}
            if fresh := [lane for lane in lanes if lane.topic not in known]:
                self._ends = dict(await consumer.end_offsets(fresh))
        self._looked = True

    async def of(self, consumer: Any, lanes: Sequence[Any]) -> dict[Any, int]:
        """Return the offsets at which ``lanes`` begin, for which there is none.

        :raises SourceUnavailable: with ``none``.
        """
        if self._reset == "none":
            names = ", ".join(f"{lane.topic}[{lane.partition}]" for lane in lanes)
            raise SourceUnavailable(
                f"auto_offset_reset='none': the group has no committed offset for {names}. Commit one, or choose "
                "earliest or latest."
            )
        begins = {lane: self._ends[lane] for lane in lanes if lane in self._ends}
        if from_the_start := [lane for lane in lanes if lane not in begins]:
            begins |= await consumer.beginning_offsets(from_the_start)
        return begins

    async def return_to_range(self, consumer: Any, lanes: Mapping[Any, int], membership: Membership) -> None:
        """Go on where there still are records; say aloud what is lost.

        :param lanes: with the offset that isn't there.
        :param membership: is told where they go on.
        """
        first = await consumer.beginning_offsets(list(lanes))
        end = await consumer.end_offsets(list(lanes))
        for lane, offset in lanes.items():
            name = f"{lane.topic}[{lane.partition}]"
            if self._reset == "none":
                raise SourceUnavailable(
                    f"auto_offset_reset='none': {name} has no offset {offset}; it holds {first[lane]} to {end[lane]}. "
                    "Commit another, or choose earliest or latest."
                )
            if offset < first[lane]:
                # Even with latest: what is left has not been read.
                goes_on = first[lane]
                log.error("%s: retention deleted up to %d records before they were read", name, goes_on - offset)
                membership.seek(lane, goes_on)
            else:
                goes_on = end[lane] if self._reset == "latest" else first[lane]
                log.error("%s ends at %d, before the offset %d to be read: it was truncated", name, end[lane], offset)
                # What gets an offset from now on that was there before is another record.
                await membership.begin({lane: goes_on})

"""What is ours in the group, and what may be told to the brokers about it.

aiokafka rebalances eagerly and forgets: at each rebalance it gives all partitions up and gets them anew, those that it
keeps too, paused by nobody and positioned at what is committed. So positions and pauses are kept here and put back,
and what is in flight of a partition that was kept without a break stays good. Between giving up and getting nothing is
committed: a partition may be somebody else's by then, and the brokers would take the offset all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Any

from airflow_provider_sharedstream.brokers.kafka.errors import NoReport, NotConnected, Rebalancing
from airflow_provider_sharedstream.brokers.kafka.histories import metadata, new_history
from airflow_provider_sharedstream.stream.consumer import LaneOwner
from airflow_provider_sharedstream.stream.waiting import wait_until_set

SETTLE_WITHIN_SECONDS = 5.0
"""How long a rebalance waits for us to commit what is decided."""
COMMIT_SECONDS = 15.0
"""How long a commit may take. aiokafka's own would try for ever."""
REJOIN_SECONDS = 5.0
"""How long a commit waits for a rebalance to end before it is tried again."""


class Phase(Enum):
    """Where a member stands."""

    JOINING = "what is ours is not known"
    MEMBER = "the assigned partitions are ours"
    LEAVING = "a rebalance has begun; what was ours may still be committed"
    OUT = "closed"


class Membership:
    """One member of the group, from joining to leaving.

    :param consumer: aiokafka's.
    :param owner: returns who is told of lost lanes, or None.
    """

    def __init__(self, consumer: Any, owner: Callable[[], LaneOwner | None]) -> None:
        self._consumer = consumer
        self._owner = owner
        self.lanes: frozenset[Any] = frozenset()
        """The partitions that are ours."""
        self.phase = Phase.JOINING
        self.phase_since = time.monotonic()
        self._assigned = asyncio.Event()
        self._generation = -1
        self._positions: dict[Any, int] = {}
        self._committed: dict[Any, int] = {}
        self._histories: dict[Any, str] = {}
        self._held: dict[Any, float] = {}
        self._commits: set[asyncio.Task[None]] = set()

    def listener(self) -> Any:
        """Return what aiokafka calls in a rebalance."""
        from aiokafka import ConsumerRebalanceListener

        membership = self

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
                await membership.revoked()

            async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
                await membership.assigned(frozenset(assigned))

        return Listener()

    @property
    def generation(self) -> int:
        """The group's generation that we are in; -1: in none."""
        return int(self._consumer._coordinator.generation)

    @property
    def _is_out(self) -> bool:
        return self.phase is Phase.OUT

    async def revoked(self) -> None:
        """All partitions are given up. Heartbeats go on meanwhile, and the others wait."""
        if self._is_out:
            return
        self._generation = self.generation
        try:
            if self._generation <= 0:
                # The group has thrown us out, and somebody else has them already.
                lost, self.lanes = self.lanes, frozenset()
                await self._lose(lost)
            # After a change of topics aiokafka itself has let go of all partitions, and commits nothing.
            elif self.lanes and self._consumer.assignment() and (owner := self._owner()) is not None:
                self._enter(Phase.LEAVING)
                # Which of them we lose is known when the new assignment is.
                await owner.settle_decided(self.lanes, SETTLE_WITHIN_SECONDS)
        finally:
            if not self._is_out:
                self._enter(Phase.JOINING)
                self._assigned.clear()
            # One that is tried again by aiokafka would carry the next generation.
            self._abandon_commits()

    async def assigned(self, lanes: frozenset[Any]) -> None:
        """``lanes`` are ours. aiokafka hands their records out from the first await on."""
        if self._is_out:
            return
        unbroken = self._generation > 0 and self.generation == self._generation + 1
        kept = self.lanes & lanes if unbroken else frozenset()
        lost, self.lanes = self.lanes - kept, lanes
        self._forget(lost)
        for lane in kept:
            if (position := self._positions.get(lane)) is not None:
                self._consumer.seek(lane, position)
        # Nothing is read of a partition before its history is known.
        for lane in self._held.keys() | self.strangers():
            self._consumer.pause(lane)
        self._enter(Phase.MEMBER)
        self._assigned.set()
        await self._lose(lost)

    def left(self) -> None:
        """Nothing is ours any more, and nothing is committed from now on."""
        self._enter(Phase.OUT)
        self.lanes = frozenset()
        self._assigned.set()
        self._abandon_commits()

    def handed_out(self, records: Mapping[Any, Sequence[Any]]) -> None:
        """Note that the machine has them."""
        for lane, of_lane in records.items():
            self._positions[lane] = of_lane[-1].offset + 1

    def strangers(self) -> list[Any]:
        """Return the lanes of ours whose history isn't known. They are paused."""
        return [lane for lane in self.lanes if lane not in self._histories]

    def history(self, lane: Any) -> str:
        """Return the history in which ``lane`` is read; empty: it isn't ours, or not read yet."""
        return self._histories.get(lane, "")

    def place(self, lane: Any, offset: int, history: str) -> None:
        """Read ``lane`` from ``offset``, in ``history``."""
        if lane not in self.lanes:
            return
        self._histories[lane] = history
        self.seek(lane, offset)
        if self.phase is Phase.MEMBER and lane not in self._held:
            self._consumer.resume(lane)

    async def begin(self, offsets: Mapping[Any, int]) -> None:
        """Begin a history of each lane at these offsets. It is committed before a record of it is handed out, so that
        it goes on wherever the lane is read next.

        :raises Rebalancing: not now; nothing has changed.
        :raises NoReport: the coordinator doesn't answer.
        """
        generation = self.generation
        histories = {lane: new_history() for lane in offsets}
        for lane in offsets:
            self._committed.pop(lane, None)
        await self._commit(offsets, histories)
        if self.generation != generation:
            raise Rebalancing("the group was rebalanced meanwhile")
        for lane, offset in offsets.items():
            self.place(lane, offset, histories[lane])

    def seek(self, lane: Any, offset: int) -> None:
        """Read ``lane`` from ``offset``, if it is ours. What was fetched of it is dropped."""
        if lane not in self.lanes:
            return
        self._positions[lane] = offset
        if offset < self._committed.get(lane, -1):
            # The partition was truncated, or its topic made anew.
            del self._committed[lane]
        if self.phase is Phase.MEMBER:
            self._consumer.seek(lane, offset)

    def rewind(self, lane: Any, offset: int, delay_seconds: float) -> None:
        """Read ``lane`` again from ``offset``, after a while."""
        if lane not in self.lanes:
            return
        self.seek(lane, offset)
        if delay_seconds > 0:
            self._held[lane] = time.monotonic() + delay_seconds
            if self.phase is Phase.MEMBER:
                self._consumer.pause(lane)

    def resume_due(self, longest_seconds: float) -> float:
        """Go on with lanes whose time has come; return the seconds until the next one's, or ``longest_seconds``."""
        if not self._held:
            return longest_seconds
        now = time.monotonic()
        for lane in [lane for lane, at in self._held.items() if at <= now]:
            del self._held[lane]
            if lane in self.lanes and self.phase is Phase.MEMBER:
                self._consumer.resume(lane)
        return min([longest_seconds, *(at - now for at in self._held.values())])

    async def wait_assigned(self, seconds: float) -> bool:
        """Wait for the next assignment; return whether there is one."""
        await wait_until_set(self._assigned, seconds)
        return self.phase is Phase.MEMBER

    async def commit(self, offsets: Mapping[Any, int]) -> None:
        """Commit the offsets of lanes of ours: of each the next one to be read.

        :raises Rebalancing: not now.
        :raises NoReport: the coordinator doesn't answer.
        """
        await self._commit(offsets, self._histories)

    async def _commit(self, offsets: Mapping[Any, int], histories: Mapping[Any, str]) -> None:
        if self.phase is Phase.JOINING:
            await self.wait_assigned(REJOIN_SECONDS)
        if self._is_out:
            raise NotConnected("the group has been left")
        if self.phase is Phase.JOINING or self.generation <= 0:
            # Without a generation the brokers might take an offset from anybody.
            raise Rebalancing("the group is being rebalanced")
        # Only forward: a commit that was slow to fail must not take a later one back.
        ours = self.lanes & histories.keys()
        news = {lane: at for lane, at in offsets.items() if lane in ours and at > self._committed.get(lane, -1)}
        if not news:
            return
        marked = {lane: (offset, metadata(histories[lane], offset)) for lane, offset in news.items()}
        committing = asyncio.create_task(self._consumer.commit(marked), name="sharedstream-kafka-commit")
        self._commits.add(committing)
        try:
            await asyncio.wait({committing}, timeout=COMMIT_SECONDS)
        finally:
            self._commits.discard(committing)
            if not committing.done():
                committing.cancel()
        if not committing.done():
            raise NoReport(f"the group's coordinator has not answered a commit for {COMMIT_SECONDS:g} s")
        if committing.cancelled():
            raise Rebalancing("the group was rebalanced meanwhile")
        committing.result()
        for lane, offset in news.items():
            if lane in self.lanes:
                self._committed[lane] = offset

    def _forget(self, lanes: frozenset[Any]) -> None:
        for of_lanes in (self._positions, self._committed, self._held, self._histories):
            for lane in lanes:
                of_lanes.pop(lane, None)

    async def _lose(self, lanes: frozenset[Any]) -> None:
        self._forget(lanes)
        if lanes and (owner := self._owner()) is not None:
            await owner.lanes_revoked(lanes, 0.0)

    def _abandon_commits(self) -> None:
        for commit in list(self._commits):
            commit.cancel()

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.phase_since = time.monotonic()

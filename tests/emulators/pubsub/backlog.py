"""The messages of one subscription: leased, settled, repeated, dead-lettered. Knows no network and takes no lock."""

from __future__ import annotations

import heapq
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from google.pubsub_v1.types import PubsubMessage, ReceivedMessage, Subscription

from tests.emulators.pubsub import errors
from tests.emulators.pubsub.lanes import Entry, Holder, KeyLane, Lane, Lease, UnorderedLane

MESSAGES_IN_A_RESPONSE = 100
ACK_ID_LENGTH = 200
"""As long as the service's, so that requests reach its limits with as few of them."""


class Depth(NamedTuple):
    """How many messages a subscription owes, by state."""

    ready: int
    """Waiting for a receiver, or for the end of a retry policy's delay."""
    leased: int

    @property
    def total(self) -> int:
        return self.ready + self.leased


@dataclass
class Outcome:
    """What became of the ack ids of one request."""

    done: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    unordered: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Refused because a test said so."""

    def __bool__(self) -> bool:
        return bool(self.done or self.invalid or self.unordered or self.failed)

    def add(self, other: Outcome) -> None:
        self.done += other.done
        self.invalid += other.invalid
        self.unordered += other.unordered
        self.failed += other.failed

    def failures(self) -> dict[str, str]:
        """Ack id to reason, as exactly-once delivery reports it."""
        return {
            **dict.fromkeys(self.invalid, errors.INVALID_ACK_ID),
            **dict.fromkeys(self.unordered, errors.UNORDERED_ACK_ID),
            **dict.fromkeys(self.failed, errors.TRANSIENT_FAILURE),
        }


class Backlog:
    """All that one subscription owes.

    :param subscription: its settings, read at every step, so that they can be changed.
    :param bury: takes a copy to the dead-letter topic; False when there is no such topic, and then it is repeated on.
    :param clock: seconds, never going back.
    """

    def __init__(
        self,
        subscription: Subscription,
        bury: Callable[[str, PubsubMessage], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.subscription = subscription
        self._bury = bury
        self._clock = clock
        self._lanes: dict[str, Lane] = {"": UnorderedLane()}
        self._by_ack_id: dict[str, Entry] = {}
        self._deadlines: list[tuple[float, int, Lease, Entry]] = []
        self._numbers = itertools.count()
        self._ticks = itertools.count()
        self._ack_id_prefix = secrets.token_hex(ACK_ID_LENGTH // 2)[20:] + "-"

    @property
    def exactly_once(self) -> bool:
        return self.subscription.enable_exactly_once_delivery

    def add(self, message: PubsubMessage) -> None:
        key = message.ordering_key if self.subscription.enable_message_ordering else ""
        lane = self._lanes.setdefault(key, KeyLane())
        lane.add(Entry(message, next(self._numbers), PubsubMessage.pb(message).ByteSize(), lane))

    def depth(self) -> Depth:
        self._expire()
        leased = sum(entry.lease is not None for entry in self._by_ack_id.values())
        return Depth(sum(lane.owed for lane in self._lanes.values()) - leased, leased)

    def wakes_at(self) -> float | None:
        """When time alone may make something deliverable."""
        now = self._clock()
        ends = [end for lane in self._lanes.values() if (end := lane.wakes_at(now)) is not None]
        return min([*ends, *(deadline for deadline, *_ in self._deadlines[:1])], default=None)

    def take(
        self,
        holder: Holder,
        deadline_seconds: float,
        *,
        max_messages: int = MESSAGES_IN_A_RESPONSE,
        outstanding_messages: int = 0,
        outstanding_bytes: int = 0,
    ) -> list[ReceivedMessage]:
        """Lease what `holder` may have now, oldest first.

        :param outstanding_messages: how many it may hold altogether; 0: any number.
        :param outstanding_bytes: at how many bytes it gets no more; 0: any number.
        """
        self._expire()
        now = self._clock()
        taken: list[ReceivedMessage] = []
        heads = [(head.number, lane) for lane in self._lanes.values() if (head := lane.head(holder, now))]
        heapq.heapify(heads)
        while heads and len(taken) < max_messages:
            if 0 < outstanding_messages <= holder.messages or 0 < outstanding_bytes <= holder.bytes:
                break
            _, lane = heapq.heappop(heads)
            taken.append(self._lease(lane.hand_out(holder, now), holder, now + deadline_seconds))
            if head := lane.head(holder, now):
                heapq.heappush(heads, (head.number, lane))
        return taken

    def acknowledge(self, ack_ids: Sequence[str]) -> Outcome:
        """Raises ApiError when one is malformed, and then does nothing."""
        outcome = Outcome()
        for ack_id, entry in self._resolve(ack_ids):
            if entry is None or (self.exactly_once and entry.lease is None):
                outcome.invalid.append(ack_id)
            elif self.exactly_once and isinstance(entry.lane, KeyLane) and entry is not entry.lane.entries[0]:
                outcome.unordered.append(ack_id)
            else:
                self._settle(entry)
                outcome.done.append(ack_id)
        return outcome

    def modify_deadline(self, ack_ids: Sequence[str], seconds: int) -> Outcome:
        """0 gives the message back. Raises ApiError when an ack id is malformed, and then does nothing."""
        outcome = Outcome()
        resolved = [(ack_id, entry, entry and entry.lease) for ack_id, entry in self._resolve(ack_ids)]
        for ack_id, entry, lease in resolved:
            if entry is None or lease is None:
                outcome.invalid.append(ack_id)
                continue
            outcome.done.append(ack_id)
            # A failure before it in this request may have ended this lease too: an ordering key starts over.
            if entry.lease is lease:
                if seconds:
                    self._extend(entry, lease, self._clock() + seconds)
                else:
                    self._fail(entry)
        return outcome

    def _resolve(self, ack_ids: Sequence[str]) -> list[tuple[str, Entry | None]]:
        self._expire()
        for ack_id in ack_ids:
            if not ack_id.startswith(self._ack_id_prefix):
                raise errors.malformed_ack_id(ack_id)
        return [(ack_id, self._by_ack_id.get(ack_id)) for ack_id in ack_ids]

    def _lease(self, entry: Entry, holder: Holder, deadline: float) -> ReceivedMessage:
        self._by_ack_id.pop(entry.ack_id, None)
        entry.ack_id = f"{self._ack_id_prefix}{entry.number:012}-{secrets.randbelow(10**6):06}"
        self._by_ack_id[entry.ack_id] = entry
        entry.lease = Lease(entry.ack_id, holder, deadline)
        holder.messages += 1
        holder.bytes += entry.size
        self._extend(entry, entry.lease, deadline)
        attempt = entry.failures + 1 if "dead_letter_policy" in self.subscription else 0
        return ReceivedMessage(ack_id=entry.ack_id, message=entry.message, delivery_attempt=attempt)

    def _extend(self, entry: Entry, lease: Lease, deadline: float) -> None:
        lease.deadline = deadline
        heapq.heappush(self._deadlines, (deadline, next(self._ticks), lease, entry))

    def _expire(self) -> None:
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, _, lease, entry = heapq.heappop(self._deadlines)
            if entry.lease is lease and lease.deadline == deadline:
                self._fail(entry)

    def _release(self, entry: Entry) -> None:
        if entry.lease is not None:
            entry.lease.holder.messages -= 1
            entry.lease.holder.bytes -= entry.size
            entry.lease = None

    def _settle(self, entry: Entry) -> None:
        self._release(entry)
        self._by_ack_id.pop(entry.ack_id, None)
        entry.lane.remove(entry)
        if isinstance(entry.lane, KeyLane) and not entry.lane.owed:
            self._lanes.pop(entry.message.ordering_key)

    def _fail(self, entry: Entry) -> None:
        self._release(entry)
        entry.failures += 1
        if self._is_dead(entry):
            entry.dead = True
            self._settle(entry)
            return
        for later in entry.lane.put_back(entry, self._clock() + self._retry_delay(entry)):
            self._release(later)

    def _is_dead(self, entry: Entry) -> bool:
        if "dead_letter_policy" not in self.subscription:
            return False
        policy = self.subscription.dead_letter_policy
        if entry.failures < (policy.max_delivery_attempts or 5):
            return False
        _, project, _, name = self.subscription.name.split("/")
        copy = PubsubMessage(
            data=entry.message.data,
            ordering_key=entry.message.ordering_key,
            attributes={
                **entry.message.attributes,
                "CloudPubSubDeadLetterSourceSubscription": name,
                "CloudPubSubDeadLetterSourceSubscriptionProject": project,
                "CloudPubSubDeadLetterSourceDeliveryCount": str(entry.failures),
                "CloudPubSubDeadLetterSourceTopicPublishTime": entry.message.publish_time.rfc3339(),
            },
        )
        return self._bury(policy.dead_letter_topic, copy)

    def _retry_delay(self, entry: Entry) -> float:
        if "retry_policy" not in self.subscription:
            return 0.0
        policy = self.subscription.retry_policy
        shortest = policy.minimum_backoff.total_seconds() if "minimum_backoff" in policy else 10.0
        longest = policy.maximum_backoff.total_seconds() if "maximum_backoff" in policy else 600.0
        return float(min(longest, shortest * 2 ** (entry.failures - 1)))

"""A queue, a subscription or their dead-letter sub-queue: messages, locks and what becomes of them. Knows no AMQP."""

from __future__ import annotations

import heapq
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from tests.emulators.service_bus.content import Content
from tests.emulators.service_bus.refusals import message_lock_lost, message_not_found
from tests.emulators.service_bus.stored import Backlog, Counts, Lock, Message, QueueOptions

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"


class Consumer(Protocol):
    """An open receiver, as its queue sees it."""

    deletes: bool
    """Receive-and-delete: a message is gone once it is delivered."""

    @property
    def credit(self) -> int:
        """How many messages it may be given now."""

    def deliver(self, message: Message) -> None: ...

    def session_lost(self) -> None:
        """The session is somebody else's from now on."""


class Queue:
    """:param path: its name; of a subscription ``topic/Subscriptions/name``."""

    def __init__(
        self,
        path: str,
        options: QueueOptions,
        *,
        clock: Callable[[], float] = time.time,
        is_dead_letter_queue: bool = False,
    ) -> None:
        self.path = path
        self.options = options
        self.clock = clock
        self.disabled = False
        """Set: no receiver may be opened."""
        self.consumers: deque[Consumer] = deque()
        self.dead_letters: Queue | None = None
        if not is_dead_letter_queue:
            own = QueueOptions(lock_seconds=options.lock_seconds, max_delivery_count=2**31)
            self.dead_letters = Queue(path + DEAD_LETTER_SUFFIX, own, clock=clock, is_dead_letter_queue=True)
        self._numbers = 0
        self._messages: dict[int, Message] = {}
        self._locked: dict[uuid.UUID, Message] = {}
        self._backlog = Backlog()
        self._scheduled: list[tuple[float, int]] = []
        self._expiring: list[tuple[float, int]] = []

    # Messages come and go

    def put(self, content: Content, sequence_number: int | None = None) -> int:
        """Take a message in; returns its sequence number.

        :param sequence_number: the topic's own, where this is a subscription.
        """
        self.check(content)
        now = self.clock()
        self._numbers = sequence_number or self._numbers + 1
        lives = content.time_to_live_seconds or self.options.time_to_live_seconds
        available_at = max(now, content.scheduled_for or 0.0)
        expires_at = None if lives is None else available_at + lives
        message = Message(content, self._numbers, now, available_at, expires_at)
        self._messages[message.sequence_number] = message
        if message.scheduled(now):
            heapq.heappush(self._scheduled, (available_at, message.sequence_number))
        else:
            self._offer(message)
        if expires_at is not None:
            heapq.heappush(self._expiring, (expires_at, message.sequence_number))
        return message.sequence_number

    def check(self, content: Content) -> None:
        """Raises Refusal when this queue can't take the message."""

    def cancel_scheduled(self, sequence_number: int) -> None:
        message = self._messages.get(sequence_number)
        if message is None or not message.scheduled(self.clock()):
            raise message_not_found()
        del self._messages[sequence_number]

    def peek(self, first: int, most: int, session_id: str | None = None) -> list[Message]:
        """Messages of every state from that sequence number on; of one session only where it is given."""
        found = [
            message
            for number, message in sorted(self._messages.items())
            if number >= first and session_id in (None, message.content.session_id)
        ]
        return found[:most]

    def counts(self) -> Counts:
        now = self.clock()
        locked = sum(1 for message in self._messages.values() if message.lock)
        deferred = sum(1 for message in self._messages.values() if message.deferred and not message.lock)
        scheduled = sum(1 for message in self._messages.values() if message.scheduled(now))
        dead = len(self.dead_letters._messages) if self.dead_letters else 0
        return Counts(len(self._messages) - locked - deferred - scheduled, locked, deferred, scheduled, dead)

    # Delivery

    def attach(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def detach(self, consumer: Consumer) -> None:
        """The receiver is gone; its locks stay until they expire, as on the service."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)

    def dispatch(self) -> None:
        """Hand out what waits, one message at a time to each consumer that has credit."""
        without_credit = 0
        while self._backlog and without_credit < len(self.consumers):
            consumer = self.consumers[0]
            self.consumers.rotate(-1)
            if consumer.credit <= 0:
                without_credit += 1
                continue
            without_credit = 0
            message = self._next(self._backlog)
            if message is not None:
                self._give(message, consumer)

    def receive_deferred(self, sequence_numbers: Iterable[int], *, delete: bool) -> list[Message]:
        """Lock, or delete, deferred messages; raises Refusal when one of them isn't there."""
        messages = [self._messages.get(number) for number in sequence_numbers]
        found = [message for message in messages if message and message.deferred and not message.lock]
        if len(found) != len(messages):
            raise message_not_found()
        for message in found:
            if delete:
                del self._messages[message.sequence_number]
            else:
                self._lock(message)
        return found

    # Settlement: each raises Refusal when the lock is no longer held

    def complete(self, token: uuid.UUID) -> None:
        self._remove(self._held(token))

    def abandon(self, token: uuid.UUID) -> None:
        self._give_back(self._held(token), failed=True)
        self.dispatch()

    def release(self, token: uuid.UUID) -> None:
        """Give it back as if it had not been delivered."""
        self._give_back(self._held(token), failed=False)
        self.dispatch()

    def defer(self, token: uuid.UUID) -> None:
        message = self._held(token)
        message.deferred = True
        self._give_back(message, failed=True)

    def dead_letter(self, token: uuid.UUID, reason: str | None, description: str | None) -> None:
        message = self._held(token)
        if self.dead_letters is None:
            # There is no place behind a dead-letter queue: the message stays in it.
            self._give_back(message, failed=True)
            self.dispatch()
        else:
            self._bury(message, reason, description)

    def renew(self, token: uuid.UUID) -> float:
        """Lock for another period; returns until when."""
        lock = self._held(token).lock
        assert lock is not None
        lock.until = self.clock() + self.options.lock_seconds
        return lock.until

    # Time

    def sweep(self) -> None:
        """Do what is due: locks, times to live and schedules that have run out."""
        now = self.clock()
        for message in [message for message in self._locked.values() if self._lapsed(message, now)]:
            self._give_back(message, failed=True)
        while self._scheduled and self._scheduled[0][0] <= now:
            message_due = self._messages.get(heapq.heappop(self._scheduled)[1])
            if message_due is not None:
                message_due.enqueued_at = now
                self._offer(message_due)
        while self._expiring and self._expiring[0][0] <= now:
            expiring = self._messages.get(heapq.heappop(self._expiring)[1])
            # A locked message outlives its time: it is up to whoever holds it.
            if expiring is not None and expiring.lock is None:
                self._expire(expiring)
        self.dispatch()
        if self.dead_letters is not None:
            self.dead_letters.sweep()

    def expire_locks(self) -> int:
        """Let every lock lapse at once; returns how many there were."""
        held = list(self._locked.values())
        for message in held:
            self._give_back(message, failed=True)
        self.dispatch()
        return len(held)

    # What a queue with sessions does in another way

    def _backlog_of(self, message: Message) -> Backlog:
        return self._backlog

    def _lapsed(self, message: Message, now: float) -> bool:
        return message.lock is not None and message.lock.until <= now

    def _held(self, token: uuid.UUID) -> Message:
        message = self._locked.get(token)
        if message is None:
            raise message_lock_lost()
        if self._lapsed(message, self.clock()):
            self._give_back(message, failed=True)
            self.dispatch()
            raise message_lock_lost()
        return message

    # Inside

    def _offer(self, message: Message) -> None:
        self._backlog_of(message).push(message)

    def _next(self, backlog: Backlog) -> Message | None:
        message = self._messages.get(backlog.pop())
        if message is not None and message.expired(self.clock()):
            self._expire(message)
            return None
        return message

    def _give(self, message: Message, consumer: Consumer) -> None:
        if consumer.deletes:
            del self._messages[message.sequence_number]
        else:
            self._lock(message)
        consumer.deliver(message)

    def _lock(self, message: Message) -> None:
        message.lock = Lock(uuid.uuid4(), self.clock() + self.options.lock_seconds)
        self._locked[message.lock.token] = message

    def _unlock(self, message: Message) -> None:
        if message.lock is not None:
            del self._locked[message.lock.token]
            message.lock = None

    def _remove(self, message: Message) -> None:
        self._unlock(message)
        del self._messages[message.sequence_number]

    def _give_back(self, message: Message, *, failed: bool) -> None:
        self._unlock(message)
        message.delivery_count += failed
        if message.delivery_count >= self.options.max_delivery_count:
            attempts = f"Message could not be consumed after {self.options.max_delivery_count} delivery attempts."
            self._bury(message, "MaxDeliveryCountExceeded", attempts)
        elif message.expired(self.clock()):
            self._expire(message)
        elif not message.deferred:
            self._offer(message)

    def _expire(self, message: Message) -> None:
        if self.options.dead_letter_expired:
            self._bury(message, "TTLExpiredException", "The message expired and was dead lettered.")
        else:
            self._remove(message)

    def _bury(self, message: Message, reason: str | None, description: str | None) -> None:
        assert self.dead_letters is not None
        self._remove(message)
        told = {"DeadLetterReason": reason, "DeadLetterErrorDescription": description}
        message.content = message.content.with_application_properties({key: text for key, text in told.items() if text})
        message.expires_at = None
        message.deferred = False
        self.dead_letters._messages[message.sequence_number] = message
        self.dead_letters._offer(message)
        self.dead_letters.dispatch()

"""The links that carry messages: senders to an entity, receivers from one, with or without a session."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proton import Delivery, symbol
from proton import Link as AmqpLink

from tests.emulators.service_bus.broker import Faults
from tests.emulators.service_bus.content import contents, milliseconds, owned
from tests.emulators.service_bus.links import MAX_MESSAGE_BYTES, Link, condition, new_delivery, read
from tests.emulators.service_bus.refusals import (
    Refusal,
    entity_disabled,
    invalid_request,
    message_too_large,
    session_lock_lost,
    session_not_supported,
    session_required,
)
from tests.emulators.service_bus.sessions import Session, SessionQueue, SessionRequest
from tests.emulators.service_bus.stored import Message
from tests.emulators.service_bus.tokens import LISTEN, SEND

if TYPE_CHECKING:
    from tests.emulators.service_bus.connection import ClientConnection

SENDER_CREDIT = 1000
SESSION_FILTER = symbol("com.microsoft:session-filter")
SESSION_LOCKED_UNTIL = symbol("com.microsoft:locked-until-utc")
ACCEPT_TIMEOUT = "com.microsoft:timeout"
DEFAULT_ACCEPT_SECONDS = 60.0
TICKS_AT_EPOCH = 621_355_968_000_000_000
"""The year 1970 in .NET's unit of time, 100 nanoseconds since the year 1."""

ACTIVE, DEFERRED, SCHEDULED = range(3)
"""Values of the annotation ``x-opt-message-state``."""


def broker_annotations(message: Message, now: float) -> dict[str, Any]:
    """What the broker tells about a message."""
    told: dict[str, Any] = {
        "x-opt-sequence-number": message.sequence_number,
        "x-opt-enqueued-time": milliseconds(message.enqueued_at),
        "x-opt-message-state": SCHEDULED if message.scheduled(now) else DEFERRED if message.deferred else ACTIVE,
    }
    if message.lock is not None:
        told["x-opt-locked-until"] = milliseconds(message.lock.until)
    return told


class Sender(Link):
    """Takes messages into a queue or topic: all of a batch, or none of it."""

    right = SEND

    def __init__(self, connection: ClientConnection, amqp: AmqpLink, path: str) -> None:
        super().__init__(connection, amqp, path)
        connection.authorize(SEND, path)
        self._entity = self.broker.namespace.target(path)

    def start(self) -> None:
        self.attach()
        self.amqp.flow(SENDER_CREDIT)
        self.broker.counters.senders_opened += 1

    def delivery(self, delivery: Delivery) -> None:
        encoded = read(self.amqp, delivery, SENDER_CREDIT)
        if encoded is None:
            return
        try:
            self._take(encoded)
        except Refusal as refusal:
            delivery.local.condition = condition(refusal)
            delivery.update(Delivery.REJECTED)
        else:
            delivery.update(Delivery.ACCEPTED)
        delivery.settle()

    def _take(self, encoded: bytes) -> None:
        if len(encoded) > MAX_MESSAGE_BYTES:
            raise message_too_large(MAX_MESSAGE_BYTES)
        try:
            batch = contents(encoded)
        except ValueError as error:
            raise invalid_request(str(error)) from error
        for content in batch:
            self._entity.check(content)
        for content in batch:
            self._entity.put(content)
        self._entity.dispatch()


class Receiver(Link):
    """Gets messages from a queue, a subscription or a dead-letter queue as long as it has credit, and settles them."""

    right = LISTEN

    def __init__(self, connection: ClientConnection, amqp: AmqpLink, path: str) -> None:
        super().__init__(connection, amqp, path)
        connection.authorize(LISTEN, path)
        self.queue = self.broker.namespace.source(path)
        if self.queue.disabled:
            raise entity_disabled(path)
        self.deletes = amqp.remote_snd_settle_mode == AmqpLink.SND_SETTLED
        self._session: Session | None = None
        asked = _filters(amqp)
        self._wants_session = SESSION_FILTER in asked
        self._wanted_session: str | None = asked.get(SESSION_FILTER)
        if self._wants_session and not isinstance(self.queue, SessionQueue):
            raise session_not_supported()
        if isinstance(self.queue, SessionQueue) and not self._wants_session:
            raise session_required()

    @property
    def credit(self) -> int:
        return int(self.amqp.credit)

    @property
    def session_id(self) -> str | None:
        return None if self._session is None else self._session.session_id

    def start(self) -> None:
        self.broker.counters.receivers_opened += 1
        if not isinstance(self.queue, SessionQueue):
            self.attach()
            return
        seconds = _accept_seconds(self.amqp)
        deadline = self.queue.clock() + seconds
        self.queue.request(
            SessionRequest(self._wanted_session, self, deadline, granted=self._accept, refused=self._refuse)
        )

    def attach(self) -> None:
        super().attach()
        self.queue.attach(self)

    def describe(self) -> None:
        if self._session is None:
            return
        filters = self.amqp.source.filter
        filters.clear()
        filters.put_object({SESSION_FILTER: self._session.session_id})
        ticks = TICKS_AT_EPOCH + int(self._session.locked_until * 10_000_000)
        self.amqp.properties = {SESSION_LOCKED_UNTIL: ticks}

    def flow(self) -> None:
        self.queue.dispatch()
        if self.amqp.drain_mode and self.amqp.credit > 0:
            self.amqp.drained()

    def stop(self) -> None:
        self.queue.detach(self)

    def session_lost(self) -> None:
        self.connection.close_link(self, session_lock_lost())

    def deliver(self, message: Message) -> None:
        token = message.lock.token if message.lock else uuid.uuid4()
        delivery = new_delivery(self.amqp, token.bytes_le)
        delivery.lock_token = token
        self.amqp.send(message.content.encode(message.delivery_count, broker_annotations(message, self.queue.clock())))
        if self.deletes:
            delivery.settle()
        self.amqp.advance()
        self.broker.counters.delivered += 1
        self.connection.flush_soon()

    def delivery(self, delivery: Delivery) -> None:
        """The client chose an outcome; the answer is the same outcome, or a rejection that says why not."""
        if not delivery.updated:
            return
        reply = delivery.remote_state
        if reply in _SETTLEMENTS:
            # What gives back undelivered messages when a receiver closes is none that a test would want to fail.
            faults = self.broker.faults if reply != Delivery.RELEASED else Faults()
            try:
                faults.check_settlement()
                _SETTLEMENTS[reply](self, delivery.lock_token, delivery)
                self.broker.counters.settled += 1
            except Refusal as refusal:
                reply = Delivery.REJECTED
                delivery.local.condition = condition(refusal)
            else:
                if faults.lose_reply():
                    self.connection.abort()
                    return
        elif not delivery.settled:
            return
        delivery.update(reply)
        delivery.settle()

    def _complete(self, token: uuid.UUID, _: Delivery) -> None:
        self.queue.complete(token)

    def _release(self, token: uuid.UUID, _: Delivery) -> None:
        self.queue.release(token)

    def _dead_letter(self, token: uuid.UUID, delivery: Delivery) -> None:
        error = delivery.remote.condition
        told = owned(error.info) if error is not None and error.info else {}
        named = {str(key): value for key, value in told.items()}
        self.queue.dead_letter(token, named.get("DeadLetterReason"), named.get("DeadLetterErrorDescription"))

    def _modify(self, token: uuid.UUID, delivery: Delivery) -> None:
        if delivery.remote.undeliverable:
            self.queue.defer(token)
        elif delivery.remote.failed:
            self.queue.abandon(token)
        else:
            self.queue.release(token)

    def _accept(self, session: Session) -> None:
        self._session = session
        self.attach()
        self.connection.flush_soon()

    def _refuse(self, refusal: Refusal) -> None:
        self.connection.close_link(self, refusal)


_SETTLEMENTS: dict[Any, Callable[[Receiver, uuid.UUID, Delivery], None]] = {
    Delivery.ACCEPTED: Receiver._complete,
    Delivery.RELEASED: Receiver._release,
    Delivery.REJECTED: Receiver._dead_letter,
    Delivery.MODIFIED: Receiver._modify,
}


def _filters(amqp: AmqpLink) -> dict[Any, Any]:
    filters = amqp.remote_source.filter
    filters.rewind()
    found: dict[Any, Any] = owned(filters.get_dict()) if filters.next() else {}
    return found


def _accept_seconds(amqp: AmqpLink) -> float:
    properties = {str(key): value for key, value in (amqp.remote_properties or {}).items()}
    return float(properties.get(ACCEPT_TIMEOUT, DEFAULT_ACCEPT_SECONDS * 1000)) / 1000

"""Requests to an entity's ``$management`` node: renewals, settlements, deferred and scheduled messages, sessions."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from proton import UNDESCRIBED, Array, Data

from tests.emulators.service_bus.content import Content, milliseconds
from tests.emulators.service_bus.messaging import broker_annotations
from tests.emulators.service_bus.namespace import Topic
from tests.emulators.service_bus.queues import Queue
from tests.emulators.service_bus.refusals import invalid_request, not_implemented, session_not_supported
from tests.emulators.service_bus.sessions import SessionQueue
from tests.emulators.service_bus.stored import Message

if TYPE_CHECKING:
    from tests.emulators.service_bus.broker import Broker

Body = dict[str, Any]
Answer = tuple[int, Body]

OK, NO_CONTENT = 200, 204
RECEIVE_AND_DELETE = 0
NEVER_CHANGED_MS = 253402300800000
"""``last-updated-time`` of a request for all sessions: the first millisecond of the year 10000."""


class Management:
    """Answers for one entity; raises Refusal where the service would not do it."""

    def __init__(self, broker: Broker, entity: Queue | Topic) -> None:
        self._broker = broker
        self._entity = entity

    def answer(self, operation: str, body: Body) -> Answer:
        method = _OPERATIONS.get(operation)
        if method is None:
            raise not_implemented(operation)
        return method(self, body)

    def _renew_lock(self, body: Body) -> Answer:
        until = [self._queue.renew(token) for token in _elements(body["lock-tokens"])]
        self._broker.counters.locks_renewed += len(until)
        return OK, {"expirations": _array(Data.TIMESTAMP, map(milliseconds, until))}

    def _update_disposition(self, body: Body) -> Answer:
        queue = self._queue
        if isinstance(queue, SessionQueue):
            queue.check_session(body.get("session-id"))
        status = body["disposition-status"]
        settle: Callable[[uuid.UUID], None]
        if status == "suspended":
            reason, description = body.get("deadletter-reason"), body.get("deadletter-description")

            def settle(token: uuid.UUID) -> None:
                queue.dead_letter(token, reason, description)

        elif status in _SETTLEMENTS:
            settle = getattr(queue, _SETTLEMENTS[status])
        else:
            raise invalid_request(f"The disposition status '{status}' is not known.")
        for token in _elements(body["lock-tokens"]):
            self._broker.faults.check_settlement()
            settle(token)
            self._broker.counters.settled += 1
        return OK, {}

    def _receive_by_sequence_number(self, body: Body) -> Answer:
        queue = self._queue
        if isinstance(queue, SessionQueue):
            queue.check_session(body.get("session-id"))
        delete = int(body.get("receiver-settle-mode", 1)) == RECEIVE_AND_DELETE
        numbers = [int(number) for number in _elements(body["sequence-numbers"])]
        found = queue.receive_deferred(numbers, delete=delete)
        return OK, {
            "messages": [
                {
                    "message": self._encode(message),
                    "lock-token": message.lock.token if message.lock else uuid.UUID(int=0),
                }
                for message in found
            ]
        }

    def _peek(self, body: Body) -> Answer:
        found = self._queue.peek(int(body["from-sequence-number"]), int(body["message-count"]), body.get("session-id"))
        return (OK if found else NO_CONTENT), {"messages": [{"message": self._encode(message)} for message in found]}

    def _schedule(self, body: Body) -> Answer:
        scheduled = [Content(bytes(item["message"])) for item in body["messages"]]
        for content in scheduled:
            self._entity.check(content)
        numbers = [self._entity.put(content) for content in scheduled]
        self._entity.dispatch()
        return OK, {"sequence-numbers": _array(Data.LONG, numbers)}

    def _cancel_scheduled(self, body: Body) -> Answer:
        for number in _elements(body["sequence-numbers"]):
            self._entity.cancel_scheduled(int(number))
        return OK, {}

    def _renew_session_lock(self, body: Body) -> Answer:
        until = self._sessions.renew_session(body["session-id"])
        self._broker.counters.locks_renewed += 1
        return OK, {"expiration": milliseconds(until)}

    def _get_session_state(self, body: Body) -> Answer:
        return OK, {"session-state": self._sessions.session_state(body["session-id"])}

    def _set_session_state(self, body: Body) -> Answer:
        self._sessions.set_session_state(body["session-id"], body.get("session-state"))
        return OK, {}

    def _get_message_sessions(self, body: Body) -> Answer:
        if int(body["last-updated-time"]) < NEVER_CHANGED_MS:
            raise not_implemented("get-message-sessions by time of change")
        skip = int(body["skip"])
        page = self._sessions.session_ids()[skip : skip + int(body["top"])]
        return (OK if page else NO_CONTENT), {"skip": skip + len(page), "sessions-ids": page}

    @property
    def _queue(self) -> Queue:
        if isinstance(self._entity, Topic):
            raise invalid_request("A topic holds no messages.")
        return self._entity

    @property
    def _sessions(self) -> SessionQueue:
        if not isinstance(self._entity, SessionQueue):
            raise session_not_supported()
        return self._entity

    def _encode(self, message: Message) -> bytes:
        return message.content.encode(message.delivery_count, broker_annotations(message, self._queue.clock()))


def _array(kind: int, elements: Iterable[Any]) -> Array:
    return Array(UNDESCRIBED, kind, *elements)  # type: ignore[arg-type]


def _elements(array: Any) -> list[Any]:
    return list(getattr(array, "elements", array) or [])


_SETTLEMENTS = {"completed": "complete", "abandoned": "abandon", "defered": "defer"}

_OPERATIONS: dict[str, Callable[[Management, Body], Answer]] = {
    "renew-lock": Management._renew_lock,
    "update-disposition": Management._update_disposition,
    "receive-by-sequence-number": Management._receive_by_sequence_number,
    "peek-message": Management._peek,
    "schedule-message": Management._schedule,
    "cancel-scheduled-message": Management._cancel_scheduled,
    "renew-session-lock": Management._renew_session_lock,
    "get-session-state": Management._get_session_state,
    "set-session-state": Management._set_session_state,
    "get-message-sessions": Management._get_message_sessions,
}

"""A queue whose messages have sessions: each session is read, in order, by one receiver at a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.emulators.service_bus.content import Content
from tests.emulators.service_bus.queues import Consumer, Queue
from tests.emulators.service_bus.refusals import (
    Refusal,
    nothing_in_time,
    session_id_missing,
    session_lock_lost,
    session_taken,
)
from tests.emulators.service_bus.stored import Backlog, Message, QueueOptions


@dataclass(slots=True, eq=False)
class Session:
    session_id: str
    backlog: Backlog = field(default_factory=Backlog)
    state: bytes | None = None
    holder: Consumer | None = None
    locked_until: float = 0.0


@dataclass(slots=True, eq=False)
class SessionRequest:
    """A receiver that wants a session, until it gets one or the time is up.

    :param session_id: None: any that has messages and no receiver.
    """

    session_id: str | None
    consumer: Consumer
    deadline: float
    granted: Callable[[Session], None]
    refused: Callable[[Refusal], None]


class SessionQueue(Queue):
    """Messages are locked with their session, and for as long as it is."""

    def __init__(self, path: str, options: QueueOptions, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, options, clock=clock)
        self._sessions: dict[str, Session] = {}
        self._requests: list[SessionRequest] = []

    def check(self, content: Content) -> None:
        if not content.session_id:
            raise session_id_missing()

    # Sessions find receivers

    def request(self, request: SessionRequest) -> None:
        """Grant a session now, or refuse it now, or as soon as there is one, or when the time is up."""
        self._requests.append(request)
        self._grant()

    def withdraw(self, consumer: Consumer) -> None:
        """The receiver no longer waits."""
        self._requests = [request for request in self._requests if request.consumer is not consumer]

    def detach(self, consumer: Consumer) -> None:
        """The receiver closed: its session is free at once, and what it held was not delivered."""
        super().detach(consumer)
        self.withdraw(consumer)
        for session in self._sessions.values():
            if session.holder is consumer:
                self._free(session, failed=False)
        self._grant()

    def lose_session(self, session_id: str) -> bool:
        """Take a session away from its receiver; returns whether it had one."""
        session = self._sessions.get(session_id)
        if session is None or session.holder is None:
            return False
        self._lose(session)
        return True

    def expire_locks(self) -> int:
        """Take every session away from its receiver; returns how many there were."""
        held = [session for session in self._sessions.values() if session.holder]
        for session in held:
            self._lose(session)
        return len(held)

    # What a session's receiver may ask for: each raises Refusal when nobody holds the session

    def renew_session(self, session_id: str) -> float:
        session = self._held_session(session_id)
        session.locked_until = self.clock() + self.options.lock_seconds
        return session.locked_until

    def session_state(self, session_id: str) -> bytes | None:
        return self._held_session(session_id).state

    def set_session_state(self, session_id: str, state: bytes | None) -> None:
        self._held_session(session_id).state = state

    def check_session(self, session_id: str | None) -> None:
        """Raises Refusal when the session is no longer held."""
        if session_id is not None:
            self._held_session(session_id)

    def session_ids(self) -> list[str]:
        """Of all sessions that hold messages or a state."""
        with_messages = {message.content.session_id for message in self._messages.values()}
        known = self._sessions.values()
        return sorted(found.session_id for found in known if found.state or found.session_id in with_messages)

    # Queue's own

    def dispatch(self) -> None:
        for session in list(self._sessions.values()):
            while session.backlog and session.holder is not None and session.holder.credit > 0:
                message = self._next(session.backlog)
                if message is not None:
                    self._give(message, session.holder)
        self._grant()

    def sweep(self) -> None:
        now = self.clock()
        for session in [held for held in self._sessions.values() if held.holder and held.locked_until <= now]:
            self._lose(session)
        for request in [waiting for waiting in self._requests if waiting.deadline <= now]:
            self._requests.remove(request)
            request.refused(nothing_in_time())
        super().sweep()

    def _backlog_of(self, message: Message) -> Backlog:
        return self._session(message.content.session_id or "").backlog

    def _lapsed(self, message: Message, now: float) -> bool:
        # The sweep of sessions takes care of it: a message's lock never ends alone.
        return False

    def _held(self, token: uuid.UUID) -> Message:
        message = self._locked.get(token)
        if message is not None:
            self._held_session(message.content.session_id or "")
        return super()._held(token)

    def _lock(self, message: Message) -> None:
        super()._lock(message)
        assert message.lock is not None
        message.lock.until = self._session(message.content.session_id or "").locked_until

    # Inside

    def _session(self, session_id: str) -> Session:
        return self._sessions.setdefault(session_id, Session(session_id))

    def _held_session(self, session_id: str) -> Session:
        session = self._session(session_id)
        if session.holder is not None and session.locked_until <= self.clock():
            self._lose(session)
        if session.holder is None:
            raise session_lock_lost()
        return session

    def _grant(self) -> None:
        for request in list(self._requests):
            if request.session_id is None:
                session = self._next_free_session()
                if session is None:
                    continue
            else:
                session = self._session(request.session_id)
            self._requests.remove(request)
            if session.holder is not None:
                request.refused(session_taken(session.session_id))
                continue
            session.holder = request.consumer
            session.locked_until = self.clock() + self.options.lock_seconds
            request.granted(session)

    def _next_free_session(self) -> Session | None:
        free = [session for session in self._sessions.values() if session.backlog and session.holder is None]
        return min(free, key=lambda session: session.backlog.first, default=None)

    def _lose(self, session: Session) -> None:
        holder = session.holder
        self._free(session, failed=True)
        if holder is not None:
            super().detach(holder)
            holder.session_lost()
        self._grant()

    def _free(self, session: Session, *, failed: bool) -> None:
        session.holder = None
        for message in list(self._locked.values()):
            if message.content.session_id == session.session_id:
                self._give_back(message, failed=failed)

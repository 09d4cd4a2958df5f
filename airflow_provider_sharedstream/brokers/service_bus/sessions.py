"""Several sessions of one entity at once: a lane each, a link each.

The SDK has a connection for every session. One session at a time is asked for, however many are wanted: on an idle
entity that is one connection which waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence

from airflow_provider_sharedstream.brokers.service_bus.errors import NotConnected, clock_is_off, is_transient
from airflow_provider_sharedstream.brokers.service_bus.link import OPEN_SECONDS, Link
from airflow_provider_sharedstream.brokers.service_bus.session import Arrival, Session, by_session
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, error_text
from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

PROBE_ACCEPT_SECONDS = 2.0
"""How long a connect waits for a session: long enough to hear that there may be some."""
ACCEPT_SECONDS = 60.0
"""How long Service Bus is asked to wait for a session that has messages."""
RECEIVE_SECONDS = 1.0
IDLE_SECONDS = 5.0
"""How long a session without messages is kept; a fifth of that where all places are taken and others may wait."""
DEMAND_SECONDS = 0.5
SHORTEST_ACCEPT_SECONDS = 1.0
LONGEST_REST_SECONDS = 30.0


class Sessions:
    """Accepts sessions, receives from all of them, and gives them back when they are empty.

    :param make_link: makes the link for the next session that is free; takes how long Service Bus shall wait for one.
    :param most: sessions at once.
    :param most_open: messages of one session that are handed out and not settled.
    :param lost: told the id of each session that was taken away.
    """

    def __init__(
        self,
        make_link: Callable[[float], Link],
        most: int,
        most_open: int,
        lost: Callable[[str], Awaitable[None]],
    ) -> None:
        self._make_link = make_link
        self._most = most
        self._most_open = most_open
        self._lost = lost
        self._sessions: dict[str, Session] = {}
        self._links: set[Link] = set()
        self._inbox: deque[Arrival] = deque()
        self._wanted = 0
        self._asked = 0
        self._demand = asyncio.Event()
        self._arrived = asyncio.Event()
        self._trouble: BaseException | None = None
        # Sessions that are lost as soon as they are accepted shouldn't be accepted on and on.
        self._rest = Backoff(1.0, LONGEST_REST_SECONDS)
        self._accept_rest = Backoff(1.0, LONGEST_REST_SECONDS)
        self._rest_until = 0.0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connect(self) -> None:
        """Find out whether sessions can be accepted; keep one that is there."""
        if (session := await self._accept(PROBE_ACCEPT_SECONDS)) is not None:
            await self._begin(session)
        self._spawn(self._accept_on(), "accept")

    async def receive(self, most: int, seconds: float) -> list[Arrival]:
        """Return up to ``most`` messages, each session's in order; none after ``seconds``."""
        deadline = time.monotonic() + seconds
        self._wanted = most
        self._demand.set()
        try:
            while not self._inbox and self._trouble is None and (left := deadline - time.monotonic()) > 0:
                self._arrived.clear()
                await wait_until_set(self._arrived, left)
        finally:
            self._wanted = 0
        if not self._inbox and self._trouble is not None:
            raise self._trouble
        found = [self._inbox.popleft() for _ in range(min(most, len(self._inbox)))]
        for arrival in found:
            arrival.session.active_at = time.monotonic()
        return found

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> dict[Delivery, BaseException]:
        """Tell Service Bus; return what failed."""
        told = await asyncio.gather(
            *(self._settle(session, disposition, some) for session, some in by_session(deliveries).items())
        )
        return {delivery: error for failures in told for delivery, error in failures.items()}

    async def renew(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        """Renew the locks of the sessions of ``deliveries``; return those whose session is lost."""
        sessions = by_session(deliveries)
        errors = await asyncio.gather(*map(self._renew, sessions), return_exceptions=True)
        for session, error in zip(sessions, errors, strict=True):
            if error is not None and not session.ended:
                raise error
        return [delivery for session, some in sessions.items() if session.ended for delivery in some]

    async def close(self) -> None:
        """Give all sessions back, and with them what is still open."""
        self._trouble = self._trouble or NotConnected("the sessions were given back")
        self._arrived.set()
        for session in self._sessions.values():
            session.ended = True
        self._sessions.clear()
        self._inbox.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(link.close() for link in self._links))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Accepting

    async def _accept_on(self) -> None:
        try:
            while True:
                # Also while those that are ours are asked for all that is wanted: they may have nothing.
                if len(self._sessions) >= self._most or self._wanted <= len(self._inbox):
                    await self._wait_for_demand()
                    continue
                started = time.monotonic()
                if started < self._rest_until:
                    await asyncio.sleep(self._rest_until - started)
                    continue
                try:
                    session = await self._accept(ACCEPT_SECONDS)
                except Exception as error:
                    if not self._sessions or not is_transient(error):
                        raise
                    # Those that are ours needn't be given back for it.
                    seconds = self._accept_rest.next_seconds()
                    log.warning(
                        "No further session could be accepted, next try in %.1f s: %s", seconds, error_text(error)
                    )
                    self._rest_until = time.monotonic() + seconds
                    continue
                self._accept_rest.reset()
                if session is not None:
                    await self._begin(session)
                elif (rest := SHORTEST_ACCEPT_SECONDS - (time.monotonic() - started)) > 0:
                    await asyncio.sleep(rest)
        except Exception as error:
            # Whoever receives is told, and connects anew.
            self._trouble = self._trouble or error
            self._arrived.set()

    async def _accept(self, seconds: float) -> Session | None:
        """Return the next session that is free and has messages; None: there was none for so long."""
        link = self._make_link(seconds)
        self._links.add(link)
        session = None
        try:
            await link.open(seconds + OPEN_SECONDS)
            session = Session(link)
            if session.seconds_left <= 0:
                raise clock_is_off(session.seconds_left)
        except Exception as error:
            if type(error).__name__ in ("OperationTimeoutError", "SessionCannotBeLockedError"):
                return None
            raise
        finally:
            if session is None or session.seconds_left <= 0:
                await self._close(link)
        return session

    async def _begin(self, session: Session) -> None:
        if (before := self._sessions.get(session.id)) is not None:
            # It was taken away and has come back before we heard of it.
            await self._end(before, lost=True)
        self._sessions[session.id] = session
        self._spawn(self._serve(session), f"session-{session.id}")

    # Receiving

    @property
    def _free(self) -> int:
        """How many messages more may be asked for."""
        return self._wanted - len(self._inbox) - self._asked

    async def _serve(self, session: Session) -> None:
        """Receive from a session until it is empty, or lost."""
        try:
            while not session.ended and not session.is_lost:
                room = min(self._free, self._most_open - len(session.open))
                if room > 0:
                    await self._receive(session, room)
                else:
                    await self._wait_for_demand()
                if not session.open and self._is_idle(session):
                    break
        except Exception as error:
            session.link.give_up_for(error)
        if not session.ended:
            await self._end(session, lost=session.is_lost)

    async def _receive(self, session: Session, room: int) -> None:
        # Its share, so that the others needn't wait while it has nothing.
        asked = min(room, max(1, self._wanted // len(self._sessions)))
        self._asked += asked
        try:
            messages = await session.link.receive(asked, RECEIVE_SECONDS)
        finally:
            self._asked -= asked
        if messages and not session.ended:
            self._rest.reset()
            session.active_at = time.monotonic()
            self._inbox.extend(Arrival(session, message) for message in messages)
            self._arrived.set()
        if self._free > 0:
            self._demand.set()

    async def _wait_for_demand(self) -> None:
        self._demand.clear()
        await wait_until_set(self._demand, DEMAND_SECONDS)

    def _is_idle(self, session: Session) -> bool:
        longest = IDLE_SECONDS if len(self._sessions) < self._most else IDLE_SECONDS / 5
        # Nobody renews the lock of a session of which nothing is open.
        longest = min(longest, session.lock_seconds / 3)
        return time.monotonic() - session.active_at > longest

    async def _end(self, session: Session, *, lost: bool) -> None:
        """Let go of a session; what is left in it comes again."""
        session.ended = True
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id]
        self._inbox = deque(arrival for arrival in self._inbox if arrival.session is not session)
        try:
            if lost:
                log.warning("Session %r was lost, what is open in it comes again: %s", session.id, session.link.trouble)
                self._rest_until = time.monotonic() + self._rest.next_seconds()
                await self._lost(session.id)
        finally:
            await self._close(session.link)
            self._demand.set()

    async def _close(self, link: Link) -> None:
        await link.close()
        self._links.discard(link)

    # Settling

    async def _settle(
        self, session: Session, disposition: Disposition, deliveries: Sequence[Delivery]
    ) -> dict[Delivery, BaseException]:
        released = disposition is Disposition.RELEASE
        if session.ended:
            return {} if released else session.all_lost(deliveries)
        # One message of a session can't be given back alone: those behind it would overtake it. So the session is, with
        # all that is open in it; only the first, which failed, is counted up.
        failures = await session.link.settle(disposition, deliveries[:1] if released else deliveries)
        if session.link.trouble is not None or any(isinstance(error, LeaseLost) for error in failures.values()):
            if not session.ended:
                await self._end(session, lost=True)
            return {} if released else session.all_lost(failures)
        if released and not failures:
            self._spawn(self._end(session, lost=False), f"end-{session.id}")
            session.ended = True
        elif released:
            failures = dict.fromkeys(deliveries, failures[deliveries[0]])
        else:
            session.open.difference_update(delivery for delivery in deliveries if delivery not in failures)
        return failures

    async def _renew(self, session: Session) -> None:
        if session.ended:
            return
        try:
            await session.link.renew_session()
            session.lock_seconds = session.seconds_left
        except Exception:
            if session.link.trouble is None:
                raise
            if not session.ended:
                await self._end(session, lost=True)

    def _spawn(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"service-bus-{name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s broke", task.get_name(), exc_info=error)

"""One client's connection: bytes from asyncio into proton's AMQP engine, the engine's events to the links, and back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from proton import (
    Collector,
    Connection,
    Delivery,
    Endpoint,
    Event,
    EventType,
    Session,
    Transport,
    TransportException,
)
from proton import Link as AmqpLink

from tests.emulators.service_bus.links import Link, condition, refuse
from tests.emulators.service_bus.messaging import Receiver, Sender
from tests.emulators.service_bus.refusals import Refusal, internal_error, token_ran_out, unauthorized
from tests.emulators.service_bus.requests import CBS, MANAGEMENT_SUFFIX, CbsRequests, ManagementRequests, Responses
from tests.emulators.service_bus.tokens import Grant, entity_path

if TYPE_CHECKING:
    from tests.emulators.service_bus.broker import Broker

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 65536
IDLE_TIMEOUT_SECONDS = 240


class ClientConnection(asyncio.Protocol):
    """Lives from accept to close; ``broker.connections`` holds the open ones."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.grants: list[Grant] = []
        self._links: dict[Any, Link] = {}
        self._socket: asyncio.Transport | None = None
        self._flush_is_due = False
        self._events = Collector()
        self._engine = Connection()
        self._engine.collect(self._events)
        self._transport = Transport(Transport.SERVER)
        self._transport.sasl().allowed_mechs("ANONYMOUS")
        self._transport.max_frame_size = MAX_FRAME_BYTES
        self._transport.idle_timeout = IDLE_TIMEOUT_SECONDS
        self._transport.bind(self._engine)
        self._handlers: dict[EventType, Callable[[Any], None]] = {
            Event.CONNECTION_REMOTE_OPEN: self._connection_opened,
            Event.CONNECTION_REMOTE_CLOSE: self._connection_closed,
            Event.SESSION_REMOTE_OPEN: self._session_opened,
            Event.SESSION_REMOTE_CLOSE: self._session_closed,
            Event.LINK_REMOTE_OPEN: self._link_opened,
            Event.LINK_REMOTE_CLOSE: self._link_closed,
            Event.LINK_REMOTE_DETACH: self._link_closed,
            Event.LINK_FLOW: self._link_flow,
            Event.DELIVERY: self._delivery,
        }

    # What the broker and the links ask for

    @property
    def links(self) -> list[Link]:
        """The open links."""
        return list(self._links.values())

    def authorize(self, right: str | None, path: str) -> None:
        """Raises Refusal where no token gave the right; None: any right will do."""
        now = time.time()
        for grant in self.grants:
            if grant.covers(path) and grant.expires_at > now and (right is None or right in grant.rights):
                return
        raise unauthorized(right or "Listen", path)

    def flush_soon(self) -> None:
        """Something was written to the engine outside of this connection's own events."""
        if not self._flush_is_due:
            self._flush_is_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def forget(self, link: Link) -> None:
        """The link is gone, or never came to be."""
        if self._links.pop(link.amqp, None) is not None:
            link.stop()

    def close_link(self, link: Link, refusal: Refusal) -> None:
        """Detach a link with an error; refuse it, where it still waits for a session."""
        self.forget(link)
        if link.amqp.state & Endpoint.LOCAL_ACTIVE:
            link.amqp.condition = condition(refusal)
            link.amqp.close()
        else:
            refuse(link.amqp, refusal)
        self.flush_soon()

    def tick(self) -> None:
        """Keep-alives, and links whose token ran out."""
        self._transport.tick(time.monotonic())
        now = time.time()
        self.grants = [grant for grant in self.grants if grant.expires_at > now]
        for link in self.links:
            if link.right is not None and not any(grant.covers(link.path) for grant in self.grants):
                self.close_link(link, token_ran_out())
        self._flush()

    def abort(self) -> None:
        """Cut the connection without a word, as a broken network does."""
        if self._socket is not None:
            self._socket.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self.broker.connection_opened(self)

    def data_received(self, data: bytes) -> None:
        try:
            while data and (room := self._transport.capacity()) > 0:
                self._transport.push(data[:room])
                data = data[room:]
                self._handle_events()
        except TransportException as error:
            log.warning("not AMQP: %s", error)
            self.abort()
            return
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._socket = None
        for link in self.links:
            self.forget(link)
        self._transport.unbind()
        self._events.release()
        self.broker.connection_closed(self)

    # proton's side

    def _handle_events(self) -> None:
        while (event := self._events.peek()) is not None:
            handler = self._handlers.get(event.type)
            if handler is not None:
                handler(event.context)
            self._events.pop()

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._socket is None:
            return
        while (size := self._transport.pending()) > 0:
            self._socket.write(self._transport.peek(size) or b"")
            self._transport.pop(size)
        if size < 0:
            self._socket.close()

    def _connection_opened(self, _: Connection) -> None:
        self._engine.container = "service-bus-emulator"
        self._engine.open()

    def _connection_closed(self, _: Connection) -> None:
        for link in self.links:
            self.forget(link)
        self._engine.close()

    def _session_opened(self, session: Session) -> None:
        session.open()

    def _session_closed(self, session: Session) -> None:
        for link in self.links:
            if link.amqp.session == session:
                self.forget(link)
        session.close()

    def _link_opened(self, amqp: AmqpLink) -> None:
        try:
            link = self._link_for(amqp)
        except Refusal as refusal:
            log.info("link refused: %s", refusal)
            refuse(amqp, refusal)
            return
        self._links[amqp] = link
        link.start()

    def _link_closed(self, amqp: AmqpLink) -> None:
        link = self._links.get(amqp)
        if link is not None:
            self.forget(link)
        if amqp.state & Endpoint.LOCAL_ACTIVE:
            amqp.close()

    def _link_flow(self, amqp: AmqpLink) -> None:
        link = self._links.get(amqp)
        if link is not None:
            link.flow()

    def _delivery(self, delivery: Delivery) -> None:
        link = self._links.get(delivery.link)
        if link is None:
            return
        try:
            link.delivery(delivery)
        except Exception as error:
            log.exception("%s on %s", type(link).__name__, link.path)
            self.close_link(link, internal_error(error))
        # Makes frames of what there is. Later, proton would tell several outcomes in one frame; the service does not,
        # and the SDK reads a frame for each outcome that it waits for.
        self._transport.pending()

    def _link_for(self, amqp: AmqpLink) -> Link:
        # proton's sender is this side's: the client's receiver.
        address = (amqp.remote_source if amqp.is_sender else amqp.remote_target).address
        path = entity_path(address or "")
        if path != CBS and not path.endswith(MANAGEMENT_SUFFIX):
            return Receiver(self, amqp, path) if amqp.is_sender else Sender(self, amqp, path)
        if amqp.is_sender:
            return Responses(self, amqp, path)
        return CbsRequests(self, amqp, path) if path == CBS else ManagementRequests(self, amqp, path)

"""What every end of a link has in common. Ends are named as the client sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from proton import Condition, Delivery, Terminus, symbol, ulong
from proton import Link as AmqpLink

from tests.emulators.service_bus.refusals import Refusal

if TYPE_CHECKING:
    from tests.emulators.service_bus.connection import ClientConnection

MAX_MESSAGE_BYTES = 262_144
"""Of the standard tier."""


class Link:
    """One end; its constructor raises Refusal where it may not be opened.

    :param path: the address it was opened with, in lower case.
    """

    right: str | None = None
    """What a token must allow for as long as the link is open; None: nothing."""

    def __init__(self, connection: ClientConnection, amqp: AmqpLink, path: str) -> None:
        self.connection = connection
        self.broker = connection.broker
        self.amqp = amqp
        self.path = path

    def start(self) -> None:
        """The connection knows the link now."""
        self.attach()

    def attach(self) -> None:
        amqp = self.amqp
        amqp.source.copy(amqp.remote_source)
        amqp.target.copy(amqp.remote_target)
        amqp.snd_settle_mode = amqp.remote_snd_settle_mode
        amqp.rcv_settle_mode = amqp.remote_rcv_settle_mode
        amqp.max_message_size = ulong(MAX_MESSAGE_BYTES)
        self.describe()
        amqp.open()

    def describe(self) -> None:
        """Put into the attach what is not simply the client's own words."""

    def flow(self) -> None:
        """The client changed its credit."""

    def delivery(self, delivery: Delivery) -> None:
        """A message came, or the client settled one of ours."""

    def stop(self) -> None:
        """The link is gone."""


def condition(refusal: Refusal) -> Condition:
    # The SDK reads all three fields of an error; proton leaves out an empty last one.
    return Condition(refusal.condition, refusal.description, {symbol("source"): "emulator"})


def refuse(amqp: AmqpLink, refusal: Refusal) -> None:
    """Attach without source and target, which says no; the detach that follows says why."""
    amqp.source.type = amqp.target.type = Terminus.UNSPECIFIED
    amqp.open()
    amqp.condition = condition(refusal)
    amqp.close()


def read(amqp: AmqpLink, delivery: Delivery, credit: int) -> bytes | None:
    """The whole of an incoming message, once the last of its frames is there; the client's credit is kept up."""
    if not delivery.readable or delivery.partial:
        return None
    encoded = amqp.recv(delivery.pending) or b""
    amqp.advance()
    if amqp.credit <= credit // 2:
        amqp.flow(credit - amqp.credit)
    return bytes(encoded)


def new_delivery(amqp: AmqpLink, tag: bytes) -> Delivery:
    """The next delivery to the client. It keeps attributes that are set on it; its own `tag` would be read as UTF-8."""
    return amqp.delivery(tag)  # type: ignore[arg-type]

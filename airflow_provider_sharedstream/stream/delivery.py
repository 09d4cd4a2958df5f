"""What a broker handed over and has not been told the fate of yet."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_sharedstream.stream.receipts import Receipt

NOTHING: Mapping[str, Any] = {}


class Delivery:
    """One message as it came, with what is needed to settle it.

    An adapter fills the first group of attributes, or subclasses this and computes them on demand where
    messages are many and small. The machine owns the second group.

    :param id: unique per message, the same at every redelivery.
    :param body: the bytes, or the text where the protocol carries text; None for a message without a
        body (a Kafka tombstone).
    :param headers: names to values; bytes are allowed, the decoder makes them storable.
    :param key: message key, ordering key, group or session.
    :param published_at: when the broker took it, in UTC.
    :param delivery_count: which delivery the broker says this is, from 1; 0 where it doesn't count.
    :param attributes: what the broker says of the delivery; plain JSON values.
    :param lane: deliveries of one lane are settled in the order in which they came; None: no order.
    :param handle: the adapter's own: receipt handle, ack id, offset, lock token, path.
    :param size: bytes that this delivery holds in memory, for the budget.
    :param lease_seconds: how long it is ours from now; None: no lease.
    """

    __slots__ = (
        "attributes",
        "body",
        "decoded",
        "delivery_count",
        "epoch",
        "handle",
        "headers",
        "id",
        "key",
        "lane",
        "lease_deadline",
        "lease_lost",
        "lease_seconds",
        "parked",
        "published_at",
        "reason",
        "received_at",
        "rejected_by",
        "release_delay_seconds",
        "settled",
        "size",
    )

    def __init__(
        self,
        *,
        id: str,
        body: bytes | str | None,
        handle: Any = None,
        headers: Mapping[str, Any] = NOTHING,
        key: str | None = None,
        published_at: datetime | None = None,
        delivery_count: int = 0,
        attributes: Mapping[str, Any] = NOTHING,
        lane: Hashable | None = None,
        size: int | None = None,
        lease_seconds: float | None = None,
    ) -> None:
        self.id = id
        self.body = body
        self.handle = handle
        self.headers = headers
        self.key = key
        self.published_at = published_at
        self.delivery_count = delivery_count
        self.attributes = attributes
        self.lane = lane
        self.size = len(body or b"") if size is None else size
        self.lease_seconds = lease_seconds

        self.received_at = 0.0
        """Monotonic time of arrival."""
        self.lease_deadline: float | None = None
        """Monotonic time at which the lease lapses if it isn't renewed."""
        self.lease_lost = False
        """The broker took it back: it must not be settled."""
        self.epoch = 0
        """The stream's epoch at arrival; a delivery of an older epoch must not be settled."""
        self.release_delay_seconds = 0.0
        """With a release: how long the broker shall wait before it delivers again."""
        self.reason: str | None = None
        """With a dead letter: why."""
        self.rejected_by: tuple[str, ...] = ()
        """With a dead letter: the watchers that rejected it."""
        self.parked = False
        """Its copy is in the dead-letter place already; what is left is to accept the original."""
        self.settled: bool | None = None
        """Whether the broker has taken the word that it is done with; False: it comes again; None: not told yet."""
        self.decoded: Any = None
        """The decoders' own: what they have made of it, so that twenty watchers decode once."""

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of lane {self.lane!r}>"


def runs(deliveries: Iterable[Delivery]) -> Iterator[tuple[Hashable | None, list[Delivery]]]:
    """Yield neighbours of one lane together, with the lane. A thousand small records are handled as one run."""
    for lane, run in groupby(deliveries, key=attrgetter("lane")):
        yield lane, list(run)


class Batch:
    """Deliveries of one lane: the raw event of the shared stream, and its broker payload too.

    :param deliveries: at least one, in the order in which they came, all of one lane.
    :param source: the kind of source, and
    :param stream: which one, as in the payload.
    :param offered_at: monotonic time at which it goes to the watchers.
    :param excused: trigger ids of watchers that it doesn't wait for.
    """

    __slots__ = ("deliveries", "excused", "lane", "offered_at", "receipts", "source", "stream")

    def __init__(
        self,
        deliveries: Sequence[Delivery],
        *,
        source: str = "",
        stream: str = "",
        offered_at: float = 0.0,
        excused: frozenset[int] = frozenset(),
    ) -> None:
        self.deliveries = deliveries
        self.source = source
        self.stream = stream
        lane = deliveries[0].lane
        # Without an order among messages each batch is a lane of its own, so that a slow watcher on one
        # batch delays the settlement of no other.
        self.lane: Hashable = self if lane is None else lane
        self.offered_at = offered_at
        self.excused = excused
        self.receipts: list[Receipt] = []

    def __len__(self) -> int:
        return len(self.deliveries)

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self.deliveries)

    def __repr__(self) -> str:
        return f"<Batch of {len(self.deliveries)} from {self.source} {self.stream}>"

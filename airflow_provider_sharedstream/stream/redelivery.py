"""How often a message has come, where the broker doesn't count."""

from __future__ import annotations

from collections import OrderedDict

from airflow_provider_sharedstream.stream.delivery import Delivery

MOST_REMEMBERED = 10_000
"""Messages that came back lately; the oldest is forgotten, and its count starts anew."""


class RedeliveryLedger:
    """Counts, in memory, the deliveries of messages that had to come again. It survives reconnects, not restarts."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, int] = OrderedDict()

    def count(self, delivery: Delivery) -> None:
        """Write on ``delivery`` which delivery it is."""
        # Most of the time nothing has to come again, and an id may have to be computed.
        delivery.delivery_count = self._counts.get(delivery.id, 0) + 1 if self._counts else 1

    def expect(self, delivery: Delivery) -> None:
        """Note that ``delivery`` will come again."""
        self._counts[delivery.id] = delivery.delivery_count
        self._counts.move_to_end(delivery.id)
        if len(self._counts) > MOST_REMEMBERED:
            self._counts.popitem(last=False)

    def forget(self, delivery: Delivery) -> None:
        """Note that it won't."""
        if self._counts:
            self._counts.pop(delivery.id, None)

    def __len__(self) -> int:
        return len(self._counts)

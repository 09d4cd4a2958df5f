"""What each watcher did with each batch.

Airflow counts a watcher as having acknowledged an event when it has moved past it, or has left. Two ways of leaving
store nothing: raising while on the event, and being cancelled after the yield but before the runner has
taken the event over. So a filter leaves a receipt on the batch, and a watcher that was handed the batch
and never came back for the next one makes its outcome not clean, whatever Airflow counted.
"""

from __future__ import annotations

import time

from airflow_provider_sharedstream.stream.delivery import Batch, Delivery


class Receipt:
    """One watcher's word on one batch.

    :param batch: the batch; the receipt puts itself on its list.
    :param watcher: the watcher's name, for dead letters and logs.
    :param trigger_id: of its row in Airflow's database, by which the roster knows it; None: it has none.
    """

    __slots__ = ("concluded", "failed", "matched", "matched_all", "rejected", "returned_at", "trigger_id", "watcher")

    def __init__(self, batch: Batch, watcher: str, trigger_id: int | None = None) -> None:
        self.watcher = watcher
        self.trigger_id = trigger_id
        self.matched: set[Delivery] = set()
        self.matched_all = False
        self.rejected: dict[Delivery, str] = {}
        self.failed: set[Delivery] = set()
        self.returned_at: float | None = None
        self.concluded = False
        """Airflow is through with the batch: what this watcher made of it is stored, if the watcher still runs."""
        batch.receipts.append(self)

    def match_all(self) -> None:
        """Note that every delivery of the batch concerns this watcher."""
        self.matched_all = True

    def match(self, delivery: Delivery) -> None:
        """Note that ``delivery`` went into the watcher's event."""
        self.matched.add(delivery)

    def reject(self, delivery: Delivery, reason: str) -> None:
        """Note that ``delivery`` is refused for good. The first reason stands."""
        self.rejected.setdefault(delivery, reason)

    def fail(self, delivery: Delivery) -> None:
        """Note that ``delivery`` could not be judged now and shall come again."""
        self.failed.add(delivery)

    def come_back(self) -> None:
        """Note that the watcher has moved past the batch with all that it yielded taken over."""
        self.returned_at = time.monotonic()

    @property
    def returned(self) -> bool:
        """Whether the watcher has moved past the batch."""
        return self.returned_at is not None

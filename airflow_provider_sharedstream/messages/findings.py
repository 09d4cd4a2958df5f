"""What one watcher has found out about one batch."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_sharedstream.messages.sieves import Candidate
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.receipts import Receipt


class Findings:
    """What has been found out about one batch.

    ``candidates`` is what goes into events, ``done`` are deliveries of the watcher's that need none; ``unmatched``
    counts messages that are not its own.
    """

    __slots__ = ("candidates", "done", "failed", "rejected", "unmatched")

    def __init__(self) -> None:
        self.candidates: list[Candidate] = []
        self.done: set[Delivery] = set()
        self.unmatched = 0
        self.rejected: dict[Delivery, str] = {}
        self.failed: set[Delivery] = set()

    def note_on(self, receipt: Receipt, deliveries: Sequence[Delivery]) -> None:
        """Put it on the watcher's receipt.

        :param deliveries: the batch.
        """
        for delivery in self.failed:
            receipt.fail(delivery)
        for delivery, reason in self.rejected.items():
            if delivery not in self.failed:
                receipt.reject(delivery, reason)
        matched = {candidate.delivery for candidate in self.candidates} | self.done
        if len(matched) == len(deliveries) and not (self.unmatched or self.rejected or self.failed):
            receipt.match_all()
        else:
            for delivery in matched:
                receipt.match(delivery)

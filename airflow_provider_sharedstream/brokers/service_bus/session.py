"""A session of an entity that is ours for now."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from airflow_provider_sharedstream.brokers.service_bus.delivery import seconds_until
from airflow_provider_sharedstream.brokers.service_bus.link import Link
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import LeaseLost


class Arrival(NamedTuple):
    """A message of the SDK's, and its session."""

    session: Session
    message: Any


class Session:
    """One that is ours.

    :param link: its receiver, open.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.id: str = link.receiver.session.session_id
        self.ended = False
        self.open: set[Delivery] = set()
        """Handed out and not settled; also what the machine has given up without a word."""
        self.active_at = time.monotonic()
        self.lock_seconds = self.seconds_left

    @property
    def seconds_left(self) -> float:
        """How long its lock lasts if it isn't renewed."""
        return seconds_until(self.link.receiver.session.locked_until_utc)

    @property
    def is_lost(self) -> bool:
        """Whether it is no longer ours, by the link's word or by the clock."""
        return self.link.trouble is not None or self.seconds_left <= 0

    def all_lost(self, deliveries: Iterable[Delivery]) -> dict[Delivery, BaseException]:
        """Return the failures of deliveries that can't be settled because it is lost."""
        return {delivery: LeaseLost(f"its session {self.id!r} is lost") for delivery in deliveries}


def by_session(deliveries: Sequence[Delivery]) -> dict[Session, list[Delivery]]:
    """Return the deliveries of each session, in their order."""
    found: dict[Session, list[Delivery]] = {}
    for delivery in deliveries:
        found.setdefault(delivery.handle.session, []).append(delivery)
    return found

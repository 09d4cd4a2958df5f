"""What the broker has not taken: when it is told again, what is refused, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import error_text
from airflow_provider_sharedstream.stream.reconnect import Backoff

log = logging.getLogger(__name__)

SAY_EVERY_SECONDS = 30.0
LONGEST_RETRY_SECONDS = 10.0
LONGEST_REFUSED_SECONDS = 60.0


def backoff(*, transient: bool) -> Backoff:
    """Return one for what may pass by itself, or for what somebody has to change."""
    return Backoff(0.2, LONGEST_RETRY_SECONDS) if transient else Backoff(5.0, LONGEST_REFUSED_SECONDS)


class SettlementRetries:
    """Keeps account of each delivery that could not be settled, until it is forgotten.

    :param clock: monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._backoffs: dict[Delivery, Backoff] = {}
        self._refused: dict[Delivery, BaseException] = {}
        self.refusals = 0
        """So far, of whichever delivery."""
        self._unsaid = 0
        self._said_at = float("-inf")

    @property
    def refusal(self) -> BaseException | None:
        """Why something is refused; None when nothing is."""
        return next(iter(self._refused.values()), None)

    def is_refused(self, delivery: Delivery) -> bool:
        return delivery in self._refused

    def note(self, what: str, delivery: Delivery, error: BaseException, *, transient: bool) -> None:
        """Note a failure, and say it.

        :param what: the settlement, for logs.
        :param transient: whether it may pass by itself.
        """
        if transient:
            self._say(what, error)
            return
        if not self._refused:
            log.error(
                "%s was refused and is tried again slowly; no further message is taken until it works: %s", what, error
            )
        if delivery not in self._refused:
            self._backoffs.pop(delivery, None)
        self._refused[delivery] = error
        self.refusals += 1

    def wait_seconds(self, delivery: Delivery, *, transient: bool) -> float:
        """Return how long to wait before the next attempt."""
        if (own := self._backoffs.get(delivery)) is None:
            own = self._backoffs[delivery] = backoff(transient=transient)
        return own.next_seconds()

    def forget(self, deliveries: Iterable[Delivery]) -> None:
        """Let go of deliveries that are not told again."""
        if self._backoffs or self._refused:
            for delivery in deliveries:
                self._backoffs.pop(delivery, None)
                self._refused.pop(delivery, None)

    def _say(self, what: str, error: BaseException) -> None:
        self._unsaid += 1
        now = self._clock()
        if now - self._said_at >= SAY_EVERY_SECONDS:
            log.warning("Settlements tried again: %d; the latest, %s, since: %s", self._unsaid, what, error_text(error))
            self._unsaid = 0
            self._said_at = now

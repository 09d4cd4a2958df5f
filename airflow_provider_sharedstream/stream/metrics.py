"""Every metric name and label, in one table.

They go through ``airflow.sdk.observability.stats`` to whatever Airflow is configured for: StatsD, OpenTelemetry,
Datadog.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from airflow.sdk.observability import stats

log = logging.getLogger(__name__)

_failures_said: set[str] = set()


class Metric(NamedTuple):
    """One row of the table; every metric has the labels ``source`` and ``stream`` too."""

    name: str
    kind: Literal["counter", "gauge", "timer"]
    meaning: str
    labels: tuple[str, ...] = ()


UP = Metric("sharedstream.up", "gauge", "1 while the stream receives, 0 while it is held or reconnecting")
WATCHERS = Metric("sharedstream.watchers", "gauge", "watchers that listen to the stream in this triggerer")
RECEIVED = Metric("sharedstream.received", "counter", "messages received, redeliveries included")
OFFERED = Metric("sharedstream.batches", "counter", "batches handed to the watchers")
SETTLED = Metric("sharedstream.settled", "counter", "messages settled with the broker", ("disposition",))
LAPSED = Metric("sharedstream.lapsed", "counter", "messages left for the broker to deliver again", ("cause",))
IN_FLIGHT = Metric("sharedstream.in_flight", "gauge", "messages received and not settled")
IN_FLIGHT_BYTES = Metric("sharedstream.in_flight_bytes", "gauge", "bytes of those messages")
WINDOW = Metric("sharedstream.window", "gauge", "batches that may be with the watchers at once")
CONFIRM = Metric("sharedstream.confirm", "timer", "from a batch's last watcher moving on to its events being stored")
SETTLE_RETRIES = Metric("sharedstream.settle_retries", "counter", "messages whose settlement is tried again")
LEASES_LOST = Metric(
    "sharedstream.leases_lost", "counter", "messages that the broker took back before they were settled"
)
RECONNECTS = Metric("sharedstream.reconnects", "counter", "attempts to connect after a failure", ("kind",))
UNJUDGED = Metric(
    "sharedstream.match_not_evaluated", "counter", "messages on which a watcher's match could not be evaluated"
)
REJECTED = Metric("sharedstream.rejected", "counter", "messages that a watcher rejected")
REPEATED = Metric(
    "sharedstream.repeated", "counter", "messages that made no second event of a watcher (`dedupe_window_seconds`)"
)
EXPIRED = Metric("sharedstream.expired", "counter", "messages that a watcher found too old (`max_age_seconds`)")
LAG = Metric("sharedstream.lag", "gauge", "messages that wait at the broker, where it says", ("lane",))

COHORT_TIMEOUTS = Metric(
    "sharedstream.cohort_timeouts", "counter", "watchers that the stream goes on without, after waiting for them"
)
BLIND = Metric("sharedstream.blind", "counter", "times that it was given up to know who belongs to each stream")
UNATTENDED = Metric(
    "sharedstream.unattended",
    "counter",
    "messages released because somebody who was to see them had not, or their event was not stored",
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))


class StreamMetrics:
    """The metrics of one stream.

    :param source: kind of source.
    :param stream: name of the stream.
    """

    def __init__(self, source: str, stream: str) -> None:
        self._tags = {"source": source, "stream": stats.normalize_name_for_stats(stream, log_warning=False)}

    def count(self, metric: Metric, amount: int = 1, **labels: str) -> None:
        """Add ``amount`` to a counter."""
        if amount:
            self._tell(stats.incr, metric, amount, labels)

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._tell(stats.gauge, metric, value, labels)

    def timing(self, metric: Metric, seconds: float) -> None:
        """Record a duration; Airflow's timers are in milliseconds."""
        self._tell(stats.timing, metric, seconds * 1000.0, {})

    def _tell(self, how: Callable[..., None], metric: Metric, value: float, labels: Mapping[str, str]) -> None:
        try:
            how(metric.name, value, tags={**self._tags, **labels})
        except Exception as error:
            # No message may be lost for a metric; a backend that isn't there would say so a thousand times a second.
            if metric.name not in _failures_said:
                _failures_said.add(metric.name)
                log.warning("The metric %s can't be told: %s: %s", metric.name, type(error).__name__, error)

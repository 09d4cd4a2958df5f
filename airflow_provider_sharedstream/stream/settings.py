"""How a stream runs: everything about it that isn't the broker's."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_sharedstream.stream.disposition import OnReject, OnUnmatched, RejectQuorum
from airflow_provider_sharedstream.stream.roll_call import COHORT_TIMEOUT_SECONDS

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The machine's settings.

    :param batch_size: most messages in one event.
    :param batch_window_seconds: longest wait for a batch to fill.
    :param max_in_flight: most messages received and not settled.
    :param max_in_flight_bytes: no further receive while they hold more.
    :param on_reject: see :class:`~.disposition.DispositionPolicy`, as the next three.
    :param reject_quorum: see there.
    :param on_unmatched: see there.
    :param max_deliveries: see there.
    :param release_delay_seconds: delay before the second delivery; doubles each time.
    :param max_release_delay_seconds: its upper bound.
    :param confirm_target_seconds: how long storing a batch's events may take before fewer are offered at once.
    :param ack_timeout_seconds: Airflow's ``[triggerer] shared_stream_ack_timeout``.
    :param subscriber_queue_size: Airflow's ``[triggerer] shared_stream_subscriber_queue_size``.
    :param join_grace_seconds: where there is no roster: wait at start for further watchers of the stream.
    :param cohort_timeout_seconds: how long a watcher that belongs to the stream and doesn't listen is waited for.
    :param close_deadline_seconds: how long closing may spend on telling the broker.
    """

    batch_size: int = 100
    batch_window_seconds: float = 0.5
    max_in_flight: int = 1000
    max_in_flight_bytes: int = 64 * MEBIBYTE
    on_reject: OnReject = "dead_letter"
    reject_quorum: RejectQuorum = "any"
    on_unmatched: OnUnmatched = "accept"
    max_deliveries: int | None = 10
    release_delay_seconds: float = 5.0
    max_release_delay_seconds: float = 900.0
    confirm_target_seconds: float = 3.0
    ack_timeout_seconds: float = 300.0
    subscriber_queue_size: int = 1024
    join_grace_seconds: float = 0.0
    cohort_timeout_seconds: float = COHORT_TIMEOUT_SECONDS
    close_deadline_seconds: float = 8.0

    @property
    def max_lease_seconds(self) -> float:
        """Twice the ack timeout: what Airflow is still deciding about must stay ours."""
        return 2 * self.ack_timeout_seconds + 60

    @property
    def max_batches(self) -> int:
        """Batches with the watchers at once: under the queue per watcher, which also has to take a failure notice."""
        return max(1, min(self.max_in_flight, self.subscriber_queue_size - 24))

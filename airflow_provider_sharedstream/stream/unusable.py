"""A source that can't be reached since its arguments are wrong."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import SourceUnavailable


class UnusableConsumer:
    """Stands where an adapter would, so that a stream with wrong arguments is held like any other.

    :param trouble: what is wrong.
    :param source: kind of source.
    :param stream: what there is of its name.
    """

    limits = BrokerLimits(receive_batch=1, settle_batch=1)
    capabilities = Capabilities()
    dead_letter_place: str | None = None

    def __init__(self, trouble: str, source: str, stream: str) -> None:
        self._trouble = trouble
        self.source = source
        self.stream = stream
        self.identity = f"none:{trouble}"
        self.lane_owner: LaneOwner | None = None

    async def connect(self) -> None:
        raise SourceUnavailable(self._trouble)

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        raise SourceUnavailable(self._trouble)

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        return NO_FAILURES

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        return NO_FAILURES

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        return ()

    def is_transient(self, error: BaseException) -> bool:
        return False

    async def close(self) -> None:
        pass

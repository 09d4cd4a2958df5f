"""Receiving: under permits, in parallel while it pays, reconnecting for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.cohort import Cohort, SourceClaim
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.in_flight import InFlightBudget
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Patience
from airflow_provider_sharedstream.stream.settings import StreamSettings

log = logging.getLogger(__name__)


class Intake:
    """Keeps a connection, and receives through it as long as there are permits and listeners.

    :param consumer: the connection.
    :param budget: permits.
    :param settings: of the stream.
    :param cohort: who must be listening; None: nobody has to.
    :param claim: the right to take from this source.
    :param connected: called after each connect; raises what forbids receiving.
    :param arrived: takes the deliveries of each receive.
    :param refusal: why nothing may be taken although the connection works (settlements are refused); else None.
    :param stream_metrics: counts.
    """

    def __init__(
        self,
        consumer: BrokerConsumer,
        budget: InFlightBudget,
        settings: StreamSettings,
        *,
        cohort: Cohort | None,
        claim: SourceClaim,
        connected: Callable[[], None],
        arrived: Callable[[Sequence[Delivery]], None],
        refusal: Callable[[], BaseException | None],
        stream_metrics: StreamMetrics,
    ) -> None:
        self._consumer = consumer
        self._budget = budget
        self._settings = settings
        self._cohort = cohort
        self._claim = claim
        self._connected = connected
        self._arrived = arrived
        self._refusal = refusal
        self._metrics = stream_metrics
        self._patience = Patience()
        self._workers: set[asyncio.Task[None]] = set()
        self._receiving = 0
        self._pause_until = 0.0

    def pause(self, seconds: float) -> None:
        """Receive nothing for so long."""
        self._pause_until = max(self._pause_until, asyncio.get_running_loop().time() + seconds)

    async def step(self) -> None:
        """Connect and receive until something goes wrong; then say so, and wait."""
        try:
            await self._connect_and_receive()
        except Exception as error:
            self._metrics.gauge(metrics.UP, 0)
            transient = self._consumer.is_transient(error)
            seconds = self._patience.next_seconds(transient=transient)
            self._say(error, transient, seconds)
            await self._close_quietly()
            await asyncio.sleep(seconds)
            self._metrics.count(metrics.RECONNECTS, kind="transient" if transient else "fatal")

    async def _connect_and_receive(self) -> None:
        if self._cohort is not None:
            await self._cohort.ready(self._settings.join_grace_seconds)
        await self._consumer.connect()
        await self._claim.take(self._consumer.identity)
        self._connected()
        try:
            await self._receive_in_parallel()
        finally:
            await self._stop_workers()

    async def _receive_in_parallel(self) -> None:
        self._start_worker()
        while self._workers:
            done, _ = await asyncio.wait(self._workers, return_when=asyncio.FIRST_COMPLETED)
            self._workers -= done
            for worker in done:
                worker.result()

    def _start_worker(self) -> None:
        self._receiving += 1
        self._workers.add(asyncio.create_task(self._work(), name="sharedstream-receive"))

    async def _work(self) -> None:
        """Receive until this worker is one too many; a receive that came back full is reason for one more."""
        limits = self._consumer.limits
        while True:
            await self._wait_for_permission()
            if (refusal := self._refusal()) is not None:
                raise refusal
            permits = await self._budget.acquire(limits.receive_batch)
            count = 0
            try:
                deliveries = await self._consumer.receive(permits)
                count = len(deliveries)
                if deliveries:
                    self._arrived(deliveries)
            finally:
                self._budget.give_back(permits - count)
            if self._patience.failures:
                log.info("%s of %s is received from again", self._consumer.stream, self._consumer.source)
                self._patience.reset()
            self._metrics.gauge(metrics.UP, 1)
            if count >= limits.receive_batch and self._receiving < limits.parallel_receives:
                self._start_worker()
            elif count < limits.receive_batch and self._receiving > 1:
                # Counted down here, in the same breath: two of two workers must not both be one too many.
                self._receiving -= 1
                return

    async def _wait_for_permission(self) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._pause_until - loop.time()) > 0:
            await asyncio.sleep(left)
        if self._cohort is not None and not self._cohort.complete:
            self._metrics.gauge(metrics.UP, 0)
            await self._cohort.ready(self._settings.join_grace_seconds)

    async def _stop_workers(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._workers.clear()
        self._receiving = 0

    async def _close_quietly(self) -> None:
        try:
            await self._consumer.close()
        except Exception as error:
            log.debug("Closing after a failure failed too: %s", error)

    def _say(self, error: BaseException, transient: bool, seconds: float) -> None:
        """One line per backoff step."""
        source, stream = self._consumer.source, self._consumer.stream
        if transient:
            log.warning("Receiving from %s %s failed, next try in %.0f s: %s", source, stream, seconds, _text(error))
        elif isinstance(error, SourceUnavailable):
            log.error("%s %s can't be used, next try in %.0f s: %s", source, stream, seconds, error)
        else:
            log.error(
                "Receiving from %s %s failed in a way not foreseen, next try in %.0f s: %s",
                source,
                stream,
                seconds,
                _text(error),
                exc_info=error,
            )


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

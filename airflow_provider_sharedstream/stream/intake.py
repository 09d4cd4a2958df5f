"""Receiving: under permits, in parallel while it pays, reconnecting for ever."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.calls import call, is_transient
from airflow_provider_sharedstream.stream.claim import SourceClaim
from airflow_provider_sharedstream.stream.cohort import Cohort
from airflow_provider_sharedstream.stream.consumer import BrokerConsumer
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text
from airflow_provider_sharedstream.stream.in_flight import InFlightBudget
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import Patience
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)


class _Refused(Exception):
    """Settlements are refused, so nothing may be taken."""


class Intake:
    """Keeps a connection, and receives through it as long as there are permits and listeners.

    :param consumer: the connection.
    :param budget: permits.
    :param settings: of the stream.
    :param cohort: who must be listening; None: nobody has to.
    :param claim: the right to take from this source.
    :param connected: called after each connect; raises what forbids receiving.
    :param arrived: takes the deliveries of each receive.
    :param crowded: whether enough waits for the watchers already.
    :param refusal: tries what the broker refused to settle, if anything, and returns why it still does.
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
        crowded: Callable[[], bool],
        refusal: Callable[[], Awaitable[BaseException | None]],
        stream_metrics: StreamMetrics,
    ) -> None:
        self._consumer = consumer
        self._budget = budget
        self._settings = settings
        self._cohort = cohort
        self._claim = claim
        self._connected = connected
        self._arrived = arrived
        self._crowded = crowded
        self._refusal = refusal
        self._metrics = stream_metrics
        self._patience = Patience()
        self._workers: set[asyncio.Task[None]] = set()
        self._worker_ended = asyncio.Event()
        self._less_crowded = asyncio.Event()
        self._pause_until = 0.0

    def pause(self, seconds: float) -> None:
        """Receive nothing for so long."""
        self._pause_until = max(self._pause_until, asyncio.get_running_loop().time() + seconds)

    @property
    def paused(self) -> bool:
        """Whether a pause is under way."""
        return asyncio.get_running_loop().time() < self._pause_until

    def look(self) -> None:
        """Note that it may be less crowded now."""
        self._less_crowded.set()

    async def step(self) -> None:
        """Connect and receive until something goes wrong; then say so, and wait."""
        try:
            await self._connect_and_receive()
        except _Refused as refused:
            seconds = self._failed(transient=False)
            source, stream = self._consumer.source, self._consumer.stream
            log.error("%s %s: nothing is received, next try in %.0f s: %s", source, stream, seconds, refused)
            # The connection goes on settling what it may, and renewing leases; the next one may have other rights.
            await asyncio.sleep(seconds)
            await self._close_quietly()
        except Exception as error:
            transient = is_transient(self._consumer, error)
            seconds = self._failed(transient=transient)
            self._say(error, transient, seconds)
            await self._close_quietly()
            await asyncio.sleep(seconds)

    def _failed(self, *, transient: bool) -> float:
        self._metrics.gauge(metrics.UP, 0)
        self._metrics.count(metrics.RECONNECTS, kind="transient" if transient else "fatal")
        return self._patience.next_seconds(transient=transient)

    async def _connect_and_receive(self) -> None:
        self._metrics.gauge(metrics.UP, 0)
        if self._cohort is not None:
            await self._cohort.ready(self._settings.join_grace_seconds)
        await call(f"connecting to {self._consumer.source} {self._consumer.stream}", self._consumer.connect())
        await self._claim.take(self._consumer.identity)
        self._connected()
        try:
            await self._receive_in_parallel()
        finally:
            await self._stop_workers()

    async def _receive_in_parallel(self) -> None:
        self._start_worker()
        while self._workers:
            self._worker_ended.clear()
            for worker in [worker for worker in self._workers if worker.done()]:
                self._workers.discard(worker)
                worker.result()
            if self._workers:
                await self._worker_ended.wait()

    def _start_worker(self) -> None:
        worker = asyncio.create_task(self._work(), name="sharedstream-receive")
        self._workers.add(worker)
        worker.add_done_callback(lambda _: self._worker_ended.set())

    async def _work(self) -> None:
        """Receive until this worker is one too many; a receive that came back full is reason for one more."""
        limits = self._consumer.limits
        while True:
            count = await self._receive(await self._permits())
            if self._patience.failures:
                log.info("%s %s is received from again", self._consumer.source, self._consumer.stream)
                self._patience.reset()
            self._metrics.gauge(metrics.UP, 1)
            if self._cohort is not None:
                self._metrics.gauge(metrics.WATCHERS, len(self._cohort))
            # Those that have ended and weren't looked at yet don't count.
            working = sum(1 for worker in self._workers if not worker.done())
            if count >= limits.receive_batch and working < limits.parallel_receives:
                self._start_worker()
            elif count < limits.receive_batch and working > 1:
                # At once, so that two that think so don't both go.
                self._workers.remove(asyncio.current_task())  # type: ignore[arg-type]
                return

    async def _permits(self) -> int:
        """Wait until a receive may be made; return the permits for it."""
        while True:
            await self._wait_for_permission()
            permits = await self._budget.acquire(self._consumer.limits.receive_batch)
            complete = self._cohort is None or self._cohort.complete
            if complete and not (self.paused or self._claim.disputed or self._crowded()):
                return permits
            # What held us up last lasted, and something else has changed meanwhile.
            self._budget.give_back(permits)

    async def _receive(self, permits: int) -> int:
        """Receive once under ``permits``; return how many came."""
        count = 0

        def take(deliveries: Sequence[Delivery]) -> None:
            nonlocal count
            if deliveries:
                self._arrived(deliveries)
                count = len(deliveries)

        try:
            what = f"receiving from {self._consumer.source} {self._consumer.stream}"
            take(await call(what, self._consumer.receive(permits), late=take))
        finally:
            self._budget.give_back(permits - count)
        return count

    async def _wait_for_permission(self) -> None:
        loop = asyncio.get_running_loop()
        while (left := self._pause_until - loop.time()) > 0:
            self._metrics.gauge(metrics.UP, 0)
            await asyncio.sleep(left)
        if self._cohort is not None and not self._cohort.complete:
            self._metrics.gauge(metrics.UP, 0)
            await self._cohort.ready(self._settings.join_grace_seconds)
        if self._claim.disputed:
            self._metrics.gauge(metrics.UP, 0)
            await self._claim.undisputed()
        while self._crowded():
            self._less_crowded.clear()
            await wait_until_set(self._less_crowded, 1.0)
        if (refusal := await self._refusal()) is not None:
            raise _Refused(f"the broker refuses to settle: {error_text(refusal)}")

    async def _stop_workers(self) -> None:
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._workers.clear()

    async def _close_quietly(self) -> None:
        try:
            await call("close", self._consumer.close(), seconds=self._settings.close_deadline_seconds)
        except Exception as error:
            log.debug("Closing after a failure failed too: %s", error)

    def _say(self, error: BaseException, transient: bool, seconds: float) -> None:
        """One line per backoff step."""
        source, stream = self._consumer.source, self._consumer.stream
        if transient:
            log.warning(
                "Receiving from %s %s failed, next try in %.0f s: %s", source, stream, seconds, error_text(error)
            )
        elif isinstance(error, SourceUnavailable):
            log.error("%s %s can't be used, next try in %.0f s: %s", source, stream, seconds, error)
        else:
            log.error(
                "Receiving from %s %s failed in a way not foreseen, next try in %.0f s: %s",
                source,
                stream,
                seconds,
                error_text(error),
                exc_info=error,
            )

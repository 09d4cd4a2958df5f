"""What the common machine drives: a consumer that polls one endpoint."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Collection, Coroutine, Hashable, Mapping, Sequence
from typing import Any, Literal

from airflow_provider_sharedstream.brokers.rest.address import place_of, position_key, reach
from airflow_provider_sharedstream.brokers.rest.answers import Reader
from airflow_provider_sharedstream.brokers.rest.asks import Ask, paging
from airflow_provider_sharedstream.brokers.rest.errors import NotConnected, clear, is_transient
from airflow_provider_sharedstream.brokers.rest.http import Fetcher
from airflow_provider_sharedstream.brokers.rest.offers import Offer
from airflow_provider_sharedstream.brokers.rest.polling import JITTER, Plan, Poller
from airflow_provider_sharedstream.brokers.rest.positions import Positions
from airflow_provider_sharedstream.brokers.rest.store import airflow_state_store
from airflow_provider_sharedstream.connections.http import DEFAULT_CONN_ID
from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

BATCH = 1000
"""No endpoint has such a limit; it is what the machine takes, and tells, at once."""
WAIT_SECONDS = 2.0
"""How long a receive waits when there is nothing."""
LONGEST_FIRST_WAIT_SECONDS = 5.0
DEAD_LETTER_PLACE = "the triggerer's log"
MEBIBYTE = 1024 * 1024


class RestConsumer:
    """Polls one endpoint. The arguments are those of :class:`RestPollTrigger`."""

    source = "rest"

    def __init__(
        self,
        endpoint: str,
        http_conn_id: str | None = DEFAULT_CONN_ID,
        method: Literal["GET", "POST"] = "GET",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        data: Any = None,
        poll_interval: float = 60.0,
        items_path: str | None = None,
        id_path: str | None = None,
        cursor_path: str | None = None,
        cursor_param: str | None = None,
        next_page: Any = None,
        max_pages: int = 100,
        max_known_ids: int = 10_000,
        timeout_seconds: float = 30.0,
        max_response_bytes: int = 10 * MEBIBYTE,
        allowed_hosts: Sequence[str] = (),
        auth_class: str | None = None,
        expect: Literal["json", "any"] = "json",
    ) -> None:
        self._endpoint = endpoint
        self._http_conn_id = http_conn_id
        self._method = method
        self._headers = headers
        self._params = params
        self._data = data
        self._poll_interval = poll_interval
        self._items_path = items_path
        self._id_path = id_path
        self._cursor_path = cursor_path
        self._cursor_param = cursor_param
        self._next_page = next_page
        self._max_pages = max_pages
        self._max_known_ids = max_known_ids
        self._timeout_seconds = timeout_seconds
        self._max_response_bytes = max_response_bytes
        self._allowed_hosts = allowed_hosts
        self._auth_class = auth_class
        self._expect = expect
        self.stream = place_of(endpoint, http_conn_id)
        self._key = position_key(endpoint, http_conn_id, method, params, data, items_path, id_path)
        self.identity = f"rest:{self.stream}#{self._key}"
        self.limits = BrokerLimits(receive_batch=BATCH, settle_batch=BATCH, parallel_settles=1)
        self.capabilities = Capabilities(native_dead_letter=True, delivery_count=False)
        self.dead_letter_place = DEAD_LETTER_PLACE
        self.lane_owner: LaneOwner | None = None
        self.poller: Poller | None = None
        """Made by the first :meth:`connect`."""
        self._fetcher: Fetcher | None = None
        self._work: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        # Of later pages. Half of it is kept: it is there to spare an endpoint of which one fails every time.
        self._failures = Backoff(1.0, 60.0, jitter=lambda: 0.5 + random.random() / 2)
        self._ask_at = 0.0

    async def connect(self) -> None:
        await self.close()
        try:
            poller = self.poller = self.poller or self._make_poller()
            access, url = await reach(self._endpoint, self._http_conn_id, self._auth_class)
            poller.first = Ask(url, dict(self._params or {}), self._data)
            fetcher = self._fetcher = Fetcher(
                access,
                url,
                method=self._method,
                headers=dict(self._headers or {}),
                timeout_seconds=self._timeout_seconds,
                max_response_bytes=self._max_response_bytes,
                allowed_hosts=frozenset(self._allowed_hosts),
            )
            await fetcher.open()
            # A triggerer that starts begins all of its streams at once.
            first_wait = random.random() * min(LONGEST_FIRST_WAIT_SECONDS, JITTER * self._poll_interval)
            await asyncio.sleep(max(first_wait, self._ask_at - time.monotonic()))
            await poller.attendance.welcome()
            if poller.next_seconds() == 0.0 and await poller.read(fetcher.fetch):
                self._failures.reset()
        except Exception as error:
            raise clear(error, self.stream) from error

    def _make_poller(self) -> Poller:
        plan = Plan(
            Reader(self._items_path, self._id_path, self._cursor_path, expect_json=self._expect == "json"),
            paging(self._next_page, self._cursor_param),
            self._cursor_param,
            self._poll_interval,
            self._max_pages,
            self._max_known_ids,
        )
        return Poller(plan, self.stream, self._make_positions(), self._introductions)

    def _make_positions(self) -> Positions:
        positions = Positions(f"sharedstream.rest.{self._key}", self.stream, self._max_known_ids, self._cursor_path)
        positions.store = airflow_state_store()
        if positions.store is None:
            log.warning("Up to where %s is read is kept in memory: Airflow's state store is not here", self.stream)
        return positions

    def _introductions(self) -> Collection[Hashable]:
        return () if self.lane_owner is None else self.lane_owner.introductions

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        until = time.monotonic() + WAIT_SECONDS
        while True:
            fetcher, poller = self._fetcher, self.poller
            if fetcher is None or poller is None:
                raise NotConnected(f"{self.stream} was let go of")
            self._changed.clear()
            self._look_at_work()
            if taken := poller.take(max_messages):
                return [self._delivery(offer) for offer in taken]
            left = until - time.monotonic()
            if left <= 0:
                return ()
            await wait_until_set(self._changed, min(left, self._start_work(poller, fetcher)))

    def _look_at_work(self) -> None:
        """Raise what the work in the background ended with."""
        if self._work is not None and self._work.done():
            work, self._work = self._work, None
            try:
                work.result()
            except Exception as error:
                raise clear(error, self.stream) from error

    def _start_work(self, poller: Poller, fetcher: Fetcher) -> float:
        """Start what is to be done now, unless something is being done; return when to look again, in seconds."""
        if self._work is not None:
            return WAIT_SECONDS
        waits = [WAIT_SECONDS]
        if poller.attendance.newcomers():
            waits.append(max(0.0, poller.attendance.welcome_at - time.monotonic()))
            if not waits[-1]:
                return self._begin(poller.attendance.welcome())
        if (seconds := poller.next_seconds()) is not None:
            if not seconds:
                return self._begin(self._read(poller, fetcher))
            waits.append(seconds)
        if (seconds := poller.offers.next_due_seconds()) is not None:
            waits.append(seconds)
        return min(waits)

    def _begin(self, work: Coroutine[Any, Any, None]) -> float:
        self._work = asyncio.create_task(work, name="sharedstream-rest")
        self._work.add_done_callback(lambda _: self._changed.set())
        return WAIT_SECONDS

    async def _read(self, poller: Poller, fetcher: Fetcher) -> None:
        try:
            if await poller.read(fetcher.fetch):
                self._failures.reset()
        except Exception:
            # The machine takes a page that could be read for the end of the trouble, and begins to wait anew.
            self._ask_at = time.monotonic() + self._failures.next_seconds()
            raise

    def _delivery(self, offer: Offer) -> Delivery:
        item = offer.item
        return Delivery(
            id=item.id,
            body=item.body,
            handle=offer,
            # What is JSON is often said to be something else.
            headers={} if item.content_type is None else {"Content-Type": item.content_type},
            attributes={"endpoint": self.stream},
            # What Python holds for the texts and the objects around them.
            size=len(item.body) + 1024,
        )

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        assert self.poller is not None, "nothing was received"
        if disposition is Disposition.RELEASE:
            for delivery in deliveries:
                self.poller.offers.give_back(delivery.handle, delivery.release_delay_seconds)
        else:
            await self.poller.conclude([delivery.handle for delivery in deliveries])
        if disposition is Disposition.DEAD_LETTER:
            for delivery in deliveries:
                self._log_dead_letter(delivery)
        self._changed.set()
        return NO_FAILURES

    def _log_dead_letter(self, delivery: Delivery) -> None:
        log.error(
            "An item of %s is refused and won't come again: id %s, by %s: %s",
            self.stream,
            delivery.id,
            ", ".join(delivery.rejected_by) or "nobody in particular",
            delivery.reason,
        )

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        raise NotImplementedError("an endpoint takes nothing; the log does")

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        return ()

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    async def close(self) -> None:
        work, self._work = self._work, None
        fetcher, self._fetcher = self._fetcher, None
        if self.poller is not None:
            self.poller.start_over()
        self._changed.set()
        try:
            if work is not None:
                work.cancel()
                await asyncio.wait([work])
        finally:
            if fetcher is not None:
                await fetcher.close()


class RestSharedStreamProducer(BrokerStreamProducer):
    """The stream of a REST endpoint."""

    consumer_class = RestConsumer

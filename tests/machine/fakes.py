"""An adapter that does as it is told, and notes what it was asked."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.receipts import Receipt

NUMBERS = itertools.count()


def delivery(id: str | None = None, **more: Any) -> Delivery:
    return Delivery(id=f"d{next(NUMBERS)}" if id is None else id, **{"body": b"{}", **more})


def deliveries(count: int, **more: Any) -> list[Delivery]:
    return [delivery(**more) for _ in range(count)]


def receipt(batch: Batch, watcher: str = "w", *, returned: bool = True) -> Receipt:
    made = Receipt(batch, watcher)
    if returned:
        made.come_back()
    return made


class FakeConsumer:
    """Keeps what it is told; `on_...` are called first and may raise, wait, or answer."""

    source = "fake"

    def __init__(
        self,
        limits: BrokerLimits | None = None,
        capabilities: Capabilities | None = None,
        *,
        stream: str = "q",
        dead_letter_place: str | None = "the dead letters",
    ) -> None:
        self.limits = limits or BrokerLimits(receive_batch=10, settle_batch=10)
        self.capabilities = capabilities or Capabilities()
        self.stream = stream
        self.identity = f"fake:{stream}-{next(NUMBERS)}"
        self.dead_letter_place = dead_letter_place
        self.lane_owner: LaneOwner | None = None
        self.connects = 0
        self.closes = 0
        self.receives: list[float] = []
        self.settles: list[tuple[Disposition, list[Delivery]]] = []
        self.copies: list[list[Delivery]] = []
        self.extensions: list[list[Delivery]] = []
        self.waiting: list[Delivery] = []
        self.on_connect: Callable[[], Awaitable[None]] | None = None
        self.on_receive: Callable[[int], Awaitable[Sequence[Delivery] | None]] | None = None
        self.on_settle: Callable[[Disposition, Sequence[Delivery]], Awaitable[Failures]] | None = None
        self.on_store: Callable[[Sequence[Delivery]], Awaitable[Failures]] | None = None
        self.on_extend: Callable[[Sequence[Delivery]], Awaitable[Collection[Delivery]]] | None = None
        self.on_close: Callable[[], Awaitable[None]] | None = None
        self.transient: Callable[[BaseException], bool] = lambda error: isinstance(error, ConnectionError)

    async def connect(self) -> None:
        self.connects += 1
        if self.on_connect is not None:
            await self.on_connect()

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        self.receives.append(asyncio.get_running_loop().time())
        if self.on_receive is not None and (answer := await self.on_receive(max_messages)) is not None:
            return answer
        for _ in range(20):
            if self.waiting:
                taken, self.waiting = self.waiting[:max_messages], self.waiting[max_messages:]
                return taken
            await asyncio.sleep(0.05)
        return ()

    async def settle(self, disposition: Disposition, some: Sequence[Delivery]) -> Failures:
        failures = NO_FAILURES if self.on_settle is None else await self.on_settle(disposition, some)
        self.settles.append((disposition, [one for one in some if one not in failures]))
        return failures

    async def store_dead_letters(self, some: Sequence[Delivery]) -> Failures:
        failures = NO_FAILURES if self.on_store is None else await self.on_store(some)
        self.copies.append([one for one in some if one not in failures])
        return failures

    async def extend_leases(self, some: Sequence[Delivery]) -> Collection[Delivery]:
        self.extensions.append(list(some))
        return () if self.on_extend is None else await self.on_extend(some)

    def is_transient(self, error: BaseException) -> bool:
        return self.transient(error)

    async def close(self) -> None:
        self.closes += 1
        if self.on_close is not None:
            await self.on_close()

    def told(self, disposition: Disposition) -> list[Delivery]:
        """Everything that was settled so, in order."""
        return [one for what, some in self.settles for one in some if what is disposition]

    def fates(self) -> list[tuple[Disposition, Delivery]]:
        """What the broker was told, delivery by delivery."""
        return [(what, one) for what, some in self.settles for one in some]


def lanes_of(some: Iterable[Delivery]) -> dict[Hashable, list[str]]:
    found: dict[Hashable, list[str]] = {}
    for one in some:
        found.setdefault(one.lane, []).append(one.id)
    return found

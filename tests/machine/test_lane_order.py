"""In a lane, what is told of a delivery covers all that lies before it, as a committed offset does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from airflow.triggers.shared_stream import AdvanceItem, AdvanceOutcome

from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities, Failures
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.settings import StreamSettings
from tests.machine.fakes import FakeConsumer, deliveries, receipt
from tests.machine.virtual import in_virtual_time, until

CUMULATIVE = Capabilities(ordered_lanes=True, rewinds=True, delivery_count=False, durable_handles=False)
ACKED = AdvanceOutcome(acked=1, failed=0, rejected=0)


class CumulativeConsumer(FakeConsumer):
    """Accepting a delivery accepts all that came before it."""

    def __init__(self, some: list[Delivery]) -> None:
        super().__init__(BrokerLimits(receive_batch=50, settle_batch=50), CUMULATIVE)
        self.some = some
        self.waiting = list(some)
        self.copied: set[Delivery] = set()
        self.passed: set[Delivery] = set()

    async def settle(self, disposition: Disposition, some: Sequence[Delivery]) -> Failures:
        if disposition is Disposition.ACCEPT:
            last = max(self.some.index(one) for one in some)
            self.passed.update(self.some[: last + 1])
            lost = [one.id for one in self.passed if one.reason is not None and one not in self.copied]
            assert not lost, f"{lost} passed without a copy"
        return await super().settle(disposition, some)

    async def store_dead_letters(self, some: Sequence[Delivery]) -> Failures:
        await asyncio.sleep(0.1)
        failures = await super().store_dead_letters(some)
        self.copied.update(one for one in some if one not in failures)
        return failures


async def conclude(consumer: CumulativeConsumer, rejected: set[int]) -> BrokerStreamProducer:
    """Offer everything in one batch, of which some is rejected."""
    clock = asyncio.get_running_loop().time
    settings = StreamSettings(batch_window_seconds=0.05, batch_size=len(consumer.some))
    producer = BrokerStreamProducer(consumer, settings, clock=clock)
    opened: Any = producer.open_stream()
    batch, _ = await opened.__anext__()
    noted = receipt(batch)
    for number, one in enumerate(batch.deliveries):
        if number in rejected:
            noted.reject(one, "bad")
        else:
            noted.match(one)
    await producer.advance([AdvanceItem(batch, ACKED)])
    await until(lambda: len(producer.holdings.budget) == 0)
    await opened.aclose()
    await producer.aclose()
    return producer


@in_virtual_time
async def test_a_rejected_one_is_copied_before_what_lies_behind_it_is_accepted() -> None:
    consumer = CumulativeConsumer(deliveries(20, lane="a"))
    await conclude(consumer, {3, 4, 11})
    assert consumer.passed == set(consumer.some)
    assert consumer.copied == {consumer.some[number] for number in (3, 4, 11)}


@in_virtual_time
async def test_a_copy_that_fails_keeps_back_the_ones_behind_it() -> None:
    consumer = CumulativeConsumer(deliveries(20, lane="a"))
    tries = 0

    async def fails_twice(some: Sequence[Delivery]) -> Failures:
        nonlocal tries
        tries += 1
        return {consumer.some[3]: ConnectionResetError("away")} if tries <= 2 else {}

    consumer.on_store = fails_twice
    await conclude(consumer, {3, 4, 5})
    assert consumer.passed == set(consumer.some)
    # The copies that were written the first time aren't written again.
    assert [[consumer.some.index(one) for one in some] for some in consumer.copies] == [[4, 5], [], [3]]

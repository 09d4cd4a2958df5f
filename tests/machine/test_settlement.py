"""Telling the broker: coalesced, in chunks, again where it failed, in the order of each lane."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.consumer import NO_FAILURES, BrokerLimits, Capabilities, Failures
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost
from airflow_provider_sharedstream.stream.lanes import LaneGuard
from airflow_provider_sharedstream.stream.lease import LeaseKeeper
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.reconnect import never_ending
from airflow_provider_sharedstream.stream.settlement import Sealed, SettlementBatcher
from tests.machine.fakes import FakeConsumer, deliveries, delivery
from tests.machine.virtual import in_virtual_time, now, settle_down, until

ACCEPT, RELEASE, DEAD_LETTER = Disposition.ACCEPT, Disposition.RELEASE, Disposition.DEAD_LETTER


class Settling(SettlementBatcher):
    """A batcher that runs, and keeps what it sealed."""

    broker: FakeConsumer
    lanes: LaneGuard
    sealed: dict[Delivery, Disposition | str | None]

    def arrive(self, some: Sequence[Delivery]) -> Sequence[Delivery]:
        for one in some:
            assert self.lanes.arrive(one, now())
        return some


@asynccontextmanager
async def batcher(capabilities: Capabilities | None = None, **limits: Any) -> AsyncIterator[Settling]:
    broker = FakeConsumer(BrokerLimits(receive_batch=10, **{"settle_batch": 10, **limits}), capabilities)
    clock = asyncio.get_running_loop().time
    metrics = StreamMetrics("fake", "q")
    lanes = LaneGuard(rewinds=broker.capabilities.rewinds, stragglers=broker.capabilities.stragglers)
    sealed: dict[Delivery, Disposition | str | None] = {}

    def seal(what: Sealed) -> None:
        for one in what.deliveries:
            assert one not in sealed, "sealed twice"
            sealed[one] = what.disposition or what.cause
            lanes.leave(one, now())

    made = Settling(broker, LeaseKeeper(broker, 600.0, metrics, clock=clock), lanes, seal, metrics, clock=clock)
    made.broker, made.lanes, made.sealed = broker, lanes, sealed
    loop = asyncio.create_task(never_ending("settlement", made.step))
    try:
        yield made
        assert not loop.done()
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)
        await made.stop()


class TestCalls:
    @in_virtual_time
    async def test_what_comes_in_one_go_makes_full_chunks(self) -> None:
        async with batcher() as made:
            some = deliveries(100)
            for one in some:
                made.put(ACCEPT, [one])
            await until(lambda: len(made.sealed) == 100)
            assert [len(chunk) for _, chunk in made.broker.settles] == [10] * 10
            assert Counter(made.broker.told(ACCEPT)) == Counter(some)

    @in_virtual_time
    async def test_what_comes_while_a_call_runs_gathers(self) -> None:
        async def slow(disposition: Disposition, some: Sequence[Delivery]) -> Failures:
            await asyncio.sleep(0.1)
            return NO_FAILURES

        async with batcher(parallel_settles=1) as made:
            made.broker.on_settle = slow
            some = deliveries(200)
            for one in some:
                made.put(ACCEPT, [one])
                await asyncio.sleep(0.01)
            await until(lambda: len(made.sealed) == 200)
            assert len(made.broker.settles) <= 25

    @in_virtual_time
    async def test_several_at_once_but_no_more_than_the_broker_takes(self) -> None:
        running = most = 0

        async def slow(disposition: Disposition, some: Sequence[Delivery]) -> Failures:
            nonlocal running, most
            running += 1
            most = max(most, running)
            assert len(some) <= 10
            await asyncio.sleep(1.0)
            running -= 1
            return NO_FAILURES

        async with batcher(parallel_settles=3) as made:
            made.broker.on_settle = slow
            made.put(ACCEPT, deliveries(95))
            made.put(RELEASE, deliveries(15))
            took = await until(lambda: len(made.sealed) == 110)
            assert most == 3
            assert took < 6

    @in_virtual_time
    async def test_one_kind_does_not_starve_another(self) -> None:
        async def slow(disposition: Disposition, some: Sequence[Delivery]) -> Failures:
            await asyncio.sleep(0.1)
            return NO_FAILURES

        async with batcher(parallel_settles=1) as made:
            made.broker.on_settle = slow
            (released,) = deliveries(1)
            for number in range(100):
                made.put(ACCEPT, deliveries(20))
                if number == 10:
                    made.put(RELEASE, [released])
                if number == 20:
                    assert released in made.sealed
                await asyncio.sleep(0.1)

    @in_virtual_time
    async def test_idle_it_does_nothing(self) -> None:
        async with batcher() as made:
            made.put(ACCEPT, deliveries(1))
            await until(lambda: made.sealed)
            loop = asyncio.get_running_loop()
            turns = 0
            original = made.step

            async def counted() -> None:
                nonlocal turns
                turns += 1
                await original()

            made.step = counted  # type: ignore[method-assign]
            await asyncio.sleep(1000)
            assert turns <= 2
            assert loop.is_running()


class TestFailures:
    @in_virtual_time
    async def test_what_failed_is_tried_again_and_nothing_else(self, caplog: pytest.LogCaptureFixture) -> None:
        async with batcher() as made:
            some = deliveries(30)
            tries: Counter[Delivery] = Counter()

            async def every_third(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                tries.update(chunk)
                return {one: ConnectionResetError() for one in chunk if tries[one] <= 3 and some.index(one) % 3 == 0}

            made.broker.on_settle = every_third
            made.put(ACCEPT, some)
            await until(lambda: len(made.sealed) == 30)
            assert all(tries[one] == (4 if some.index(one) % 3 == 0 else 1) for one in some)
            assert len(caplog.records) <= 2

    @pytest.mark.parametrize("error", [ConnectionResetError("away"), asyncio.CancelledError(), TimeoutError()])
    @in_virtual_time
    async def test_a_call_that_raises_failed_for_all(self, error: BaseException) -> None:
        async with batcher() as made:

            async def fail(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                if now() < 1030:
                    raise error
                return NO_FAILURES

            made.broker.transient = lambda error: True
            made.broker.on_settle = fail
            some = deliveries(25)
            made.put(ACCEPT, some)
            await until(lambda: len(made.sealed) == 25)
            assert Counter(made.broker.told(ACCEPT)) == Counter(some)

    @in_virtual_time
    async def test_an_outage_is_one_line_and_few_calls(self, caplog: pytest.LogCaptureFixture) -> None:
        calls = 0

        async def away(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            nonlocal calls
            calls += 1
            raise ConnectionResetError

        async with batcher() as made:
            made.broker.on_settle = away
            made.put(ACCEPT, deliveries(1000))
            await asyncio.sleep(600)
            assert len(caplog.records) <= 600 / 30 + 1
            # A call every five seconds on average, not one a chunk.
            assert calls < 300
            assert not made.sealed
            made.broker.on_settle = None
            assert await until(lambda: len(made.sealed) == 1000) < 15

    @in_virtual_time
    async def test_a_lost_lease_is_given_up(self) -> None:
        async with batcher(Capabilities()) as made:
            by_clock, by_broker, fine = deliveries(3)
            by_clock.lease_deadline = now() - 1

            async def taken(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                return {by_broker: LeaseLost("taken")} if by_broker in chunk else NO_FAILURES

            made.broker.on_settle = taken
            made.put(ACCEPT, [by_clock, by_broker, fine])
            await until(lambda: len(made.sealed) == 3)
            assert made.sealed == {by_clock: "lease lost", by_broker: "lease lost", fine: ACCEPT}
            assert by_clock not in [one for _, chunk in made.broker.settles for one in chunk]
            assert by_broker.lease_lost

    @in_virtual_time
    async def test_a_void_one_is_not_told(self) -> None:
        async with batcher() as made:
            old, new = deliveries(2)
            made.lanes.arrive(old, now())
            made.lanes.end_epoch()
            made.lanes.arrive(new, now())
            made.put(ACCEPT, [old, new])
            await until(lambda: len(made.sealed) == 2)
            assert made.sealed == {old: "epoch ended", new: ACCEPT}
            assert made.broker.told(ACCEPT) == [new]

    @in_virtual_time
    async def test_failures_of_deliveries_that_were_not_in_the_call_are_not_believed(self) -> None:
        async with batcher() as made:
            stranger = delivery()
            made.broker.on_settle = lambda disposition, chunk: _answer({stranger: ConnectionResetError()})
            made.put(ACCEPT, deliveries(3))
            await until(lambda: len(made.sealed) == 3)
            await asyncio.sleep(60)
            assert stranger not in made.sealed
            assert len(made.broker.settles) == 1

    @in_virtual_time
    async def test_a_call_that_hangs_is_said(self, caplog: pytest.LogCaptureFixture) -> None:
        async def hangs(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            await asyncio.sleep(200)
            return NO_FAILURES

        async with batcher() as made:
            made.broker.on_settle = hangs
            made.put(ACCEPT, deliveries(3))
            await until(lambda: len(made.sealed) == 3)
            assert caplog.records[0].getMessage().startswith("accept of 3 messages has not come back")


async def _answer(failures: Failures) -> Failures:
    return failures


class TestRefusals:
    @in_virtual_time
    async def test_it_is_said_once_tried_slowly_and_recovers(self, caplog: pytest.LogCaptureFixture) -> None:
        calls: list[float] = []

        async def refuse(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            calls.append(now())
            raise PermissionError("sqs:DeleteMessage is not allowed")

        async with batcher() as made:
            made.broker.on_settle = refuse
            made.put(ACCEPT, deliveries(10))
            await asyncio.sleep(600)
            assert isinstance(made.refusal, PermissionError)
            assert len(caplog.records) == 1
            assert "no further message is taken" in caplog.records[0].getMessage()
            assert 10 < len(calls) < 400
            made.broker.on_settle = None
            assert await until(lambda: len(made.sealed) == 10) <= 60
            assert made.refusal is None

    @in_virtual_time
    async def test_it_can_be_tried_at_once(self) -> None:
        refused = True

        async def refuse(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            if refused:
                raise PermissionError
            return NO_FAILURES

        async with batcher() as made:
            made.broker.on_settle = refuse
            made.put(ACCEPT, deliveries(3))
            await until(lambda: made.refusal)
            await asyncio.sleep(100)
            started = now()
            assert isinstance(await made.retry_refused(), PermissionError)
            assert now() - started < 1
            refused = False
            assert await made.retry_refused() is None
            assert now() - started < 2
            assert await made.retry_refused() is None

    @in_virtual_time
    async def test_the_success_of_another_kind_does_not_end_it(self) -> None:
        """Where dead letters can't be stored, acceptances go on."""

        async def refuse(chunk: Sequence[Delivery]) -> Failures:
            raise PermissionError("sqs:SendMessage is not allowed")

        async with batcher() as made:
            made.broker.on_store = refuse
            made.put(DEAD_LETTER, deliveries(1))
            await until(lambda: made.refusal)
            made.put(ACCEPT, deliveries(5))
            await until(lambda: len(made.sealed) == 5)
            assert made.refusal is not None

    @in_virtual_time
    async def test_it_ends_with_the_message(self) -> None:
        async def refuse(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            raise PermissionError

        async with batcher() as made:
            made.broker.on_settle = refuse
            (one,) = deliveries(1)
            one.lease_deadline = now() + 100
            made.put(ACCEPT, [one])
            await until(lambda: made.refusal)
            await until(lambda: made.sealed)
            assert made.refusal is None


class TestDeadLetters:
    @in_virtual_time
    async def test_the_copy_is_there_before_the_original_goes(self) -> None:
        async with batcher() as made:
            some = deliveries(3)
            made.broker.on_settle = lambda disposition, chunk: _answer(
                NO_FAILURES if set(chunk) <= {one for copies in made.broker.copies for one in copies} else 1 / 0  # type: ignore[arg-type]
            )
            made.put(DEAD_LETTER, some)
            await until(lambda: len(made.sealed) == 3)
            assert set(made.sealed.values()) == {DEAD_LETTER}
            assert made.broker.told(ACCEPT) == some
            assert not made.broker.told(DEAD_LETTER)

    @in_virtual_time
    async def test_without_its_copy_the_original_stays(self) -> None:
        async with batcher() as made:
            lucky, unlucky = deliveries(2)

            async def store(copies: Sequence[Delivery]) -> Failures:
                return {one: ConnectionResetError() for one in copies if one is unlucky}

            made.broker.on_store = store
            made.put(DEAD_LETTER, [lucky, unlucky])
            await asyncio.sleep(100)
            assert made.sealed == {lucky: DEAD_LETTER}
            assert made.broker.told(ACCEPT) == [lucky]
            made.broker.on_store = None
            await until(lambda: unlucky in made.sealed)
            assert Counter(one for copies in made.broker.copies for one in copies) == Counter([lucky, unlucky])

    @in_virtual_time
    async def test_a_copy_is_made_once(self) -> None:
        async with batcher() as made:

            async def fail(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                if now() < 1020:
                    raise ConnectionResetError
                return NO_FAILURES

            made.broker.on_settle = fail
            some = deliveries(4)
            made.put(DEAD_LETTER, some)
            await until(lambda: len(made.sealed) == 4)
            assert Counter(one for copies in made.broker.copies for one in copies) == Counter(some)

    @in_virtual_time
    async def test_a_broker_that_has_its_own_gets_them(self) -> None:
        async with batcher(Capabilities(native_dead_letter=True)) as made:
            some = deliveries(2)
            made.put(DEAD_LETTER, some)
            await until(lambda: made.sealed)
            assert made.broker.told(DEAD_LETTER) == some
            assert not made.broker.copies


class TestLanes:
    """The order within a lane, whatever is told."""

    @in_virtual_time
    async def test_one_call_at_a_time_and_in_order(self) -> None:
        running: set[str] = set()

        async def slow(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            lanes = {str(one.lane) for one in chunk}
            assert not lanes & running
            running.update(lanes)
            await asyncio.sleep(0.5)
            running.difference_update(lanes)
            return NO_FAILURES

        async with batcher(settle_batch=4) as made:
            made.broker.on_settle = slow
            some = [delivery(lane="abc"[number % 3]) for number in range(90)]
            made.arrive(some)
            for one in some:
                made.put(ACCEPT, [one])
            await until(lambda: len(made.sealed) == 90)
            for lane in "abc":
                told = [one for one in made.broker.told(ACCEPT) if one.lane == lane]
                assert told == [one for one in some if one.lane == lane]

    @in_virtual_time
    async def test_different_things_are_told_in_order_too(self) -> None:
        """A cumulative acceptance behind a dead letter whose copy isn't stored yet would lose it."""
        async with batcher() as made:
            made.put(ACCEPT, deliveries(3))
            await until(lambda: len(made.sealed) == 3)
            first, second, third = made.arrive(deliveries(3, lane="a"))
            made.put(DEAD_LETTER, [first])
            made.put(ACCEPT, [second])
            made.put(DEAD_LETTER, [third])
            await until(lambda: len(made.sealed) == 6)
            assert [one for _, one in made.broker.fates() if one.lane == "a"] == [first, second, third]

    @in_virtual_time
    async def test_what_failed_is_waited_for(self) -> None:
        async with batcher() as made:
            first, second = made.arrive(deliveries(2, lane="a"))
            other = made.arrive(deliveries(5, lane="b"))

            async def store(copies: Sequence[Delivery]) -> Failures:
                if now() < 1060:
                    raise ConnectionResetError
                return NO_FAILURES

            made.broker.on_store = store
            made.put(DEAD_LETTER, [first])
            made.put(ACCEPT, [second])
            made.put(ACCEPT, other)
            await asyncio.sleep(30)
            assert set(made.sealed) == set(other), "one lane waits for nobody but itself"
            await until(lambda: len(made.sealed) == 7)
            assert [one for _, one in made.broker.fates() if one.lane == "a"] == [first, second]

    @in_virtual_time
    async def test_several_that_failed_keep_their_order(self) -> None:
        async with batcher() as made:
            some = made.arrive(deliveries(8, lane="a"))

            async def fail(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                if now() < 1005:
                    raise ConnectionResetError
                return NO_FAILURES

            made.broker.on_settle = fail
            made.put(ACCEPT, some[:6])
            await asyncio.sleep(1)
            made.put(ACCEPT, some[6:])
            await until(lambda: len(made.sealed) == 8)
            assert made.broker.told(ACCEPT) == list(some)

    @pytest.mark.parametrize("rewinds", [False, True])
    @in_virtual_time
    async def test_behind_a_lost_lease_nothing_is_accepted(self, rewinds: bool) -> None:
        """By the clock, by the broker, in one call, in the next: the lost one comes again first."""
        async with batcher(Capabilities(ordered_lanes=True, rewinds=rewinds), settle_batch=3) as made:
            for lane in ("clock", "broker"):
                before, lost, beside, behind = made.arrive(deliveries(4, lane=lane))
                if lane == "clock":
                    lost.lease_deadline = now() - 1

                async def taken(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                    if lost in chunk and disposition is ACCEPT:  # noqa: B023
                        at = list(chunk).index(lost)  # noqa: B023
                        return {one: LeaseLost("taken") for one in chunk[at:]}
                    return NO_FAILURES

                made.broker.on_settle = taken
                made.put(ACCEPT, [before, lost, beside, behind])
                await until(lambda: behind in made.sealed)  # noqa: B023
                assert made.sealed[before] is ACCEPT
                assert made.sealed[lost] == "lease lost"
                assert made.sealed[behind] == ("behind a held one" if rewinds else RELEASE)
                assert [one for one in made.broker.told(ACCEPT) if one.lane == lane] == [before]

    @in_virtual_time
    async def test_a_call_from_before_a_reconnect_takes_nothing_of_the_next_epoch_with_it(self) -> None:
        """It comes back late, with the word that its delivery is gone: what has come again since then is not."""
        async with batcher(Capabilities(ordered_lanes=True, rewinds=True)) as made:
            old, new, behind = delivery("m1", lane="a"), delivery("m1", lane="a"), delivery("m2", lane="a")

            async def late(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
                if old in chunk:
                    await asyncio.sleep(5)
                    return {old: LeaseLost("of an older generation")}
                return NO_FAILURES

            made.broker.on_settle = late
            made.arrive([old])
            made.put(ACCEPT, [old])
            await asyncio.sleep(1)
            made.lanes.end_epoch()
            made.arrive([new, behind])
            made.put(ACCEPT, [new, behind])
            await until(lambda: len(made.sealed) == 3)
            assert made.sealed == {old: "lease lost", new: ACCEPT, behind: ACCEPT}

    @in_virtual_time
    async def test_void_ones_at_the_front_do_not_open_the_lane(self) -> None:
        async with batcher(Capabilities(ordered_lanes=True, rewinds=True)) as made:

            async def slow(copies: Sequence[Delivery]) -> Failures:
                await asyncio.sleep(2)
                return NO_FAILURES

            made.broker.on_store = slow
            (old,) = made.arrive(deliveries(1, lane="a"))
            old.release_delay_seconds = 5.0
            made.put(DEAD_LETTER, [old])
            made.lanes.end_epoch()
            first, second = made.arrive(deliveries(2, lane="a"))
            made.put(DEAD_LETTER, [first])
            made.put(ACCEPT, [second])
            await until(lambda: len(made.sealed) == 3)
            assert [one for _, one in made.broker.fates()] == [first, second]


class TestDelays:
    @in_virtual_time
    async def test_where_the_broker_delays_it_is_told_at_once(self) -> None:
        async with batcher(Capabilities(delayed_release=True)) as made:
            (one,) = deliveries(1)
            one.release_delay_seconds = 100.0
            made.put(RELEASE, [one])
            assert await until(lambda: made.sealed) < 1
            assert one.release_delay_seconds == 100.0

    @in_virtual_time
    async def test_else_it_waits_here(self) -> None:
        async with batcher(Capabilities(delayed_release=False)) as made:
            some = deliveries(3)
            for one, delay in zip(some, (50.0, 10.0, 30.0), strict=True):
                one.release_delay_seconds = delay
            started = now()
            made.put(RELEASE, some)
            made.put(ACCEPT, deliveries(1))
            assert await until(lambda: len(made.sealed) == 1) < 1
            times = []
            for expected in (some[1], some[2], some[0]):
                await until(lambda: expected in made.sealed)  # noqa: B023
                times.append(round(now() - started))
            assert times == [10, 30, 50]

    @in_virtual_time
    async def test_what_lies_behind_in_its_lane_waits_with_it(self) -> None:
        """A session would hand it out before the one that is held."""
        async with batcher(Capabilities(ordered_lanes=True, delayed_release=False)) as made:
            held, behind = made.arrive(deliveries(2, lane="a"))
            held.release_delay_seconds = 20.0
            made.put(RELEASE, [held])
            made.put(RELEASE, [behind])
            assert await until(lambda: behind in made.sealed) >= 19.9
            assert made.broker.told(RELEASE) == [held, behind]


class TestFlush:
    @in_virtual_time
    async def test_everything_is_told_now(self) -> None:
        async with batcher(Capabilities(delayed_release=False)) as made:
            some = deliveries(30)
            for one in some:
                one.release_delay_seconds = 500.0
            made.put(RELEASE, some)
            made.put(ACCEPT, deliveries(30))
            started = now()
            await made.flush(8.0)
            assert now() - started < 1
            assert len(made.sealed) == 60
            assert all(one.release_delay_seconds == 0.0 for one in some)

    @in_virtual_time
    async def test_no_longer_than_its_deadline(self) -> None:
        async def hangs(disposition: Disposition, chunk: Sequence[Delivery]) -> Failures:
            await asyncio.sleep(1000)
            return NO_FAILURES

        async with batcher() as made:
            made.broker.on_settle = hangs
            made.put(ACCEPT, deliveries(3))
            started = now()
            await made.flush(8.0)
            assert now() - started == pytest.approx(8.0, abs=0.1)
            assert not made.sealed

    @in_virtual_time
    async def test_of_some_lanes_it_leaves_the_others_their_delays(self) -> None:
        """A rebalance is no reason to bring poison back at once."""
        async with batcher(Capabilities(ordered_lanes=True, delayed_release=False)) as made:
            mine, other = made.arrive([delivery(lane="mine"), delivery(lane="other")])
            for one in (mine, other):
                one.release_delay_seconds = 300.0
                made.put(RELEASE, [one])
            unordered = delivery()
            unordered.release_delay_seconds = 300.0
            made.put(RELEASE, [unordered])
            await settle_down()
            await made.flush(8.0, frozenset({"mine"}))
            assert set(made.sealed) == {mine}
            assert other.release_delay_seconds == 300.0
            assert await until(lambda: len(made.sealed) == 3) > 290

    @in_virtual_time
    async def test_void_ones_do_not_wait_for_their_time(self) -> None:
        async with batcher(Capabilities(delayed_release=False)) as made:
            (one,) = made.arrive(deliveries(1))
            one.release_delay_seconds = 900.0
            made.put(RELEASE, [one])
            await asyncio.sleep(1)
            made.lanes.end_epoch()
            made.drop_void()
            assert made.sealed == {one: "epoch ended"}

"""Sessions: order within each, several at once, and what becomes of one that is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from airflow_provider_sharedstream.brokers.service_bus import sessions as service_bus_sessions
from airflow_provider_sharedstream.brokers.service_bus.link import Link
from tests.airflow_loop import Watcher, repeated, triggerer, until
from tests.conformance import filters as suite_filters
from tests.conformance.harness import Faults
from tests.conformance.suite import numbered, producer_of, watch
from tests.emulators.service_bus import RemoteControl
from tests.service_bus import filters
from tests.service_bus.conftest import ServiceBus, emptied, send, trigger
from tests.service_bus.test_conformance import ServiceBusSource
from tests.service_bus.test_stream import FILTERS

SUITE_FILTERS = suite_filters.__name__


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")


@pytest.fixture(autouse=True)
def _nothing_held() -> None:
    filters.BEGUN.clear()
    filters.GO_ON = asyncio.Event()


async def send_round(service_bus: ServiceBus, queue: str, sessions: Sequence[str], numbers: range) -> None:
    for session in sessions:
        await send(service_bus, queue, [{"s": session, "n": n} for n in numbers], session_id=session)


def of_session(watcher: Watcher, session: str) -> list[int]:
    return [body["n"] for body in watcher.bodies if body["s"] == session]


def last_seen_in_order(numbers: list[int]) -> bool:
    last = [max(i for i, n in enumerate(numbers) if n == number) for number in sorted(set(numbers))]
    return last == sorted(last)


async def test_eight_sessions_at_once_each_in_order(service_bus: ServiceBus) -> None:
    queue = service_bus.queue(requires_session=True)
    sessions = [f"s{n}" for n in range(8)]
    async with triggerer() as running:
        watcher = running.start(trigger(queue, session_enabled=True, apply_function=f"{FILTERS}.held", batch_size=1))
        every = running.start(trigger(queue, session_enabled=True, batch_size=1))
        await send_round(service_bus, queue, sessions, range(1))
        # Not one of them has been settled: the slow watcher holds the first.
        await until(lambda: {body["s"] for body in every.bodies} == set(sessions), "all eight sessions")
        assert watcher.ids == []
        assert service_bus.proxy.open >= 8
        filters.GO_ON.set()
        await send_round(service_bus, queue, sessions, range(1, 20))
        await until(lambda: len(watcher.ids) >= 160, "160 messages")
        await until(emptied(service_bus, queue), "an empty queue")
        for session in sessions:
            assert of_session(watcher, session) == list(range(20))
            assert of_session(every, session) == list(range(20))
        assert {m["key"] for m in watcher.messages} == set(sessions)


async def test_more_sessions_than_places(service_bus: ServiceBus) -> None:
    queue = service_bus.queue(requires_session=True)
    sessions = [f"s{n}" for n in range(6)]
    await send_round(service_bus, queue, sessions, range(5))
    async with triggerer() as running:
        watcher = running.start(trigger(queue, session_enabled=True, max_concurrent_sessions=2))
        await until(lambda: len(watcher.ids) >= 30, "30 messages")
        await until(emptied(service_bus, queue), "an empty queue")
        for session in sessions:
            assert of_session(watcher, session) == list(range(5))


async def test_without_messages_one_connection_waits(service_bus: ServiceBus) -> None:
    queue = service_bus.queue(requires_session=True)
    async with triggerer() as running:
        watcher = running.start(trigger(queue, session_enabled=True))
        await send_round(service_bus, queue, ["a", "b", "c"], range(3))
        await until(lambda: len(watcher.ids) >= 9, "nine messages")
        await until(lambda: service_bus.proxy.open == 1, "one connection")
        await send_round(service_bus, queue, ["a"], range(3, 6))
        await until(lambda: len(watcher.ids) >= 12, "three more")
        assert of_session(watcher, "a") == list(range(6))


async def test_a_session_lost_in_the_middle(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue(requires_session=True)
    await send_round(service_bus, queue, ["a", "b"], range(20))
    async with triggerer() as running:
        watcher = running.start(
            trigger(queue, session_enabled=True, apply_function=f"{FILTERS}.held", match="body.n >= `10`", batch_size=5)
        )
        sibling = running.start(trigger(queue, session_enabled=True, batch_size=5))
        await until(lambda: len(of_session(sibling, "a")) == len(of_session(sibling, "b")) == 20, "all at the sibling")
        assert orders.lose_session(queue, "a")
        await until(lambda: len(of_session(sibling, "a")) >= 30, "the session's rest once more")
        filters.GO_ON.set()
        await until(emptied(service_bus, queue), "an empty queue")
        await until(lambda: set(of_session(watcher, "a")) == set(range(10, 20)), "all at the slow one")
        again = of_session(sibling, "a")
        assert set(again) == set(range(20))
        assert last_seen_in_order(again)
        assert of_session(sibling, "b") == list(range(20)), "the other session was disturbed"
        assert not watcher.restarts
        counts = {m["body"]["n"]: m["delivery_count"] for m in sibling.messages if m["body"]["s"] == "a"}
        assert counts[19] == 2, "a lost lock is no delivery"


async def test_a_session_that_is_held_keeps_no_later_one_waiting(
    service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_bus_sessions, "ACCEPT_SECONDS", 1.0)
    queue = service_bus.queue(requires_session=True)
    await send_round(service_bus, queue, ["a"], range(1))
    async with triggerer() as running:
        held = running.start(
            trigger(queue, session_enabled=True, apply_function=f"{FILTERS}.held", apply_timeout_seconds=150)
        )
        sibling = running.start(trigger(queue, session_enabled=True))
        await until(lambda: filters.BEGUN, "the first session")
        # Until no further session was found, several times.
        await asyncio.sleep(4)
        await send_round(service_bus, queue, ["b"], range(1))
        await until(lambda: of_session(sibling, "b") == [0], "the second session")
        assert held.ids == []
        filters.GO_ON.set()
        await until(emptied(service_bus, queue), "an empty queue")


async def test_a_session_that_cannot_be_accepted_disturbs_no_other(
    service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service_bus_sessions, "ACCEPT_SECONDS", 2.0)
    theirs, failures = Link.open, [ConnectionResetError("on purpose"), ConnectionResetError("on purpose")]

    async def open(link: Link, seconds: float) -> None:
        if failures and filters.BEGUN:
            raise failures.pop()
        await theirs(link, seconds)

    monkeypatch.setattr(Link, "open", open)
    queue = service_bus.queue(requires_session=True)
    await send_round(service_bus, queue, ["a"], range(5))
    async with triggerer() as running:
        watcher = running.start(trigger(queue, session_enabled=True, apply_function=f"{FILTERS}.held"))
        await until(lambda: filters.BEGUN, "the first session")
        said = "No further session could be accepted, next try in"
        await until(lambda: caplog.text.count(said) == 2, "two failures")
        await send_round(service_bus, queue, ["b"], range(5))
        filters.GO_ON.set()
        await until(emptied(service_bus, queue), "an empty queue")
        await until(lambda: len(watcher.ids) >= 10, "ten messages")
        assert repeated(watcher.ids) == []
        assert of_session(watcher, "a") == of_session(watcher, "b") == list(range(5))


async def test_only_the_one_that_failed_is_counted(service_bus: ServiceBus) -> None:
    queue = service_bus.queue(requires_session=True)
    await send_round(service_bus, queue, ["a"], range(1, 16))
    async with triggerer() as running:
        watcher = running.start(
            trigger(
                queue,
                session_enabled=True,
                apply_function=f"{SUITE_FILTERS}.fail_first",
                on_error="release",
                release_delay_seconds=1,
                batch_size=1,
            )
        )
        await until(emptied(service_bus, queue), "an empty queue")
        await until(lambda: set(of_session(watcher, "a")) == set(range(1, 16)), "all 15")
        numbers = of_session(watcher, "a")
        assert last_seen_in_order(numbers)
        counts: dict[int, int] = {}
        for message in watcher.messages:
            counts[message["body"]["n"]] = message["delivery_count"]
        assert counts == {n: 2 if n == 10 else 1 for n in range(1, 16)}


@pytest.mark.parametrize("renew", [True, False])
async def test_a_session_is_kept_for_three_lock_periods_by_renewals_alone(service_bus: ServiceBus, renew: bool) -> None:
    queue = service_bus.queue(requires_session=True, lock_seconds=5)
    source = ServiceBusSource(service_bus, queue, ordered=True, dead_letters=True)
    async with triggerer() as running:
        watcher = watch(running, source, Faults(renew=renew), apply_function=f"{SUITE_FILTERS}.slow")
        await source.publish(numbered(1, seconds=15), key="a")
        if renew:
            await until(lambda: watcher.ids, "the message", 90)
            await until(emptied(service_bus, queue), "an empty queue")
            assert len(watcher.ids) == 1
        else:
            await until(lambda: len(watcher.ids) >= 2, "a repeat", 120)
            assert repeated(watcher.ids)


async def test_sessions_go_on_after_their_connections_were_cut(service_bus: ServiceBus, orders: RemoteControl) -> None:
    queue = service_bus.queue(requires_session=True)
    source = ServiceBusSource(service_bus, queue, ordered=True, dead_letters=True)
    async with triggerer() as running:
        watcher = watch(running, source, settings={"batch_size": 5})
        for start in range(0, 60, 20):
            await send_round(service_bus, queue, ["a", "b"], range(start, start + 20))
            await until(lambda start=start: len(watcher.ids) > 2 * start, "some of the round")
            orders.drop_connections()
        await until(emptied(service_bus, queue), "an empty queue", 120)
        for session in ("a", "b"):
            numbers = of_session(watcher, session)
            assert set(numbers) == set(range(60))
            assert last_seen_in_order(numbers)
        assert not watcher.restarts
        assert len(producer_of(watcher).holdings.budget) == 0

"""The promises of the Pub/Sub trigger, under watchers on Airflow's real `SharedStreamManager`: on Google's emulator and
on the tests' own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from typing import Any

import pytest

from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from tests.airflow_loop import LONG_SECONDS, Watcher, repeated, triggerer, until
from tests.pubsub.conftest import CONN_ID, Own, PubSub, is_empty, send, trigger
from tests.pubsub.observed import ObservedTrigger, census

FILTERS = "tests.pubsub.filters"


def numbered(count: int, start: int = 0, **more: Any) -> list[str]:
    return [json.dumps({"n": n, **more}) for n in range(start, start + count)]


def numbers(watcher: Watcher) -> list[int]:
    return [body["n"] for body in watcher.bodies]


async def test_twenty_watchers_are_one_stream(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    before = pubsub.calls["StreamingPull"]
    streams = pubsub.open_streams
    async with triggerer() as running:
        watchers = [running.start(trigger(pubsub, orders, match={"body.watcher": n})) for n in range(20)]
        await send(orders, [json.dumps({"watcher": n % 20, "n": n}) for n in range(200)])
        await until(lambda: all(len(w.ids) >= 10 for w in watchers), "ten messages at each watcher")
        await until(is_empty(pubsub, orders), "an empty subscription")
        for number, watcher in enumerate(watchers):
            assert sorted(numbers(watcher)) == list(range(number, 200, 20))
        assert pubsub.calls["StreamingPull"] - before == 1
        assert pubsub.open_streams - streams == 1
        assert pubsub.proxy.open == 1, "connections"
        # With nothing to do there is nothing to say.
        before = Counter(pubsub.calls)
        await asyncio.sleep(8)
        assert not Counter(pubsub.calls) - before
    await until(lambda: pubsub.open_streams == streams, "the stream's end")


@pytest.mark.slow
async def test_a_slow_watcher_keeps_nobody_waiting_and_calls_are_few(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    await send(orders, numbered(500))
    before = Counter(pubsub.calls)
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5) as running:
        slow = running.start(trigger(pubsub, orders, apply_function=f"{FILTERS}.three_seconds", batch_size=50))
        quick = [running.start(trigger(pubsub, orders, batch_size=50)) for _ in range(3)]
        await until(lambda: all(len(w.ids) == 500 for w in quick), "500 at each quick watcher")
        assert len(slow.ids) < 500, "the slow watcher was not slow"
        await until(lambda: len(slow.ids) == 500, "500 at the slow watcher", 3 * LONG_SECONDS)
        await until(is_empty(pubsub, orders), "an empty subscription")
    calls = Counter(pubsub.calls) - before
    assert sum(calls.values()) <= 0.3 * 500, calls
    assert not repeated(slow.ids)


@pytest.mark.slow
async def test_five_thousand_waiting_and_twenty_five_watchers(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    await send(orders, numbered(5000))
    # One supervisor that stores 50 events a second, as measured of Airflow, for all 25 watchers.
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5, ack_timeout=60.0) as running:
        watchers = [running.start(trigger(pubsub, orders)) for _ in range(25)]
        highest = leased = 0
        deadline = time.monotonic() + 240
        while not all(len(w.ids) >= 5000 for w in watchers):
            if (producer := ObservedTrigger.producers.get(orders.name)) is not None:
                highest = max(highest, len(producer.budget))
            if isinstance(pubsub, Own):
                leased = max(leased, pubsub.emulator.depth(orders.path).leased)
            assert time.monotonic() < deadline, [len(w.ids) for w in watchers]
            await asyncio.sleep(0.2)
        await until(is_empty(pubsub, orders), "an empty subscription")
        assert 0 < highest <= 1000, "more in flight than max_in_flight"
        # Google's emulator doesn't keep to what it is asked: there the rest is held.
        assert leased <= 1000, "the service was asked for more than max_in_flight"
        for watcher in watchers:
            assert watcher.failure is None, "a queue overflowed, or an outcome timed out"
            assert sorted(numbers(watcher)) == list(range(5000))


async def test_poison_goes_to_the_dead_letter_topic_with_its_reason(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    assert orders.dead_letters is not None
    topic = orders.dead_letters.name
    async with triggerer() as running:
        careful = running.start(
            trigger(pubsub, orders, dead_letter_topic=topic, apply_function=f"{FILTERS}.explode_on_poison")
        )
        sibling = running.start(trigger(pubsub, orders, dead_letter_topic=topic))
        strict = running.start(trigger(pubsub, orders, dead_letter_topic=topic, decode="json", match="body.n >= `0`"))
        sent = await send(orders, [*numbered(50), '{"n": 50, "poison": true}'], attributes={"colour": "grün"})
        await send(orders, ["not JSON at all"], ordering_key="k")
        await until(is_empty(pubsub, orders), "an empty subscription")
        letters = {m.message.data: m.message for m in await asyncio.to_thread(orders.dead_letters.take)}
        assert set(letters) == {b'{"n": 50, "poison": true}', b"not JSON at all"}
        poison, text = letters[b'{"n": 50, "poison": true}'], letters[b"not JSON at all"]
        assert "poison" in poison.attributes["x-sharedstream-reason"]
        assert poison.attributes["x-sharedstream-delivery-id"] == sent[-1]
        assert poison.attributes["x-sharedstream-origin"].endswith(orders.path)
        assert poison.attributes["colour"] == "grün"
        assert "JSON" in text.attributes["x-sharedstream-reason"]
        assert text.ordering_key == "k"
        assert {body["n"] for body in careful.bodies if isinstance(body, dict)} == set(range(50))
        assert set(numbers(strict)) == set(range(51))
        # Those that had accepted it are not asked again.
        assert not repeated(sibling.ids)
        assert not any(watcher.restarts for watcher in (careful, sibling, strict))


async def test_poison_goes_through_the_subscriptions_own_policy(
    pubsub: PubSub, caplog: pytest.LogCaptureFixture
) -> None:
    orders = pubsub.subscription(max_delivery_attempts=5)
    assert orders.dead_letters is not None
    async with triggerer() as running:
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            careful = running.start(
                trigger(
                    pubsub, orders, apply_function=f"{FILTERS}.explode_on_poison", release_delay_seconds=0, batch_size=1
                )
            )
            sent = await send(orders, [*numbered(10), '{"n": 10, "poison": true}'])
            found: list[Any] = []

            async def dead() -> bool:
                found.extend(await asyncio.to_thread(orders.dead_letters.take))
                return len(found) > 0

            await until(dead, "a dead letter")
        assert [one.message.data for one in found] == [b'{"n": 10, "poison": true}']
        assert found[0].message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
        assert sorted(numbers(careful)) == list(range(10))
        assert {m["delivery_count"] for m in careful.messages} == {1}
        assert sent[0] in careful.ids
        said = " ".join(record.getMessage() for record in caplog.records)
        assert "the subscription's policy moves it" in said
        assert "for ever" not in said


@pytest.mark.slow
async def test_a_minute_without_the_server(pubsub: PubSub, caplog: pytest.LogCaptureFixture) -> None:
    orders = pubsub.subscription()
    async with triggerer() as running:
        watchers = [running.start(trigger(pubsub, orders)) for _ in range(5)]
        await send(orders, numbered(50))
        await until(lambda: all(len(w.ids) >= 50 for w in watchers), "the first fifty")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            pubsub.proxy.cut()
            await send(orders, numbered(50, 50))
            await asyncio.sleep(60)
            pubsub.proxy.heal()
            await until(lambda: all(len(set(w.ids)) >= 100 for w in watchers), "all hundred", 180)
        failures = [r for r in caplog.records if "next try in" in r.getMessage()]
        tries = [r for r in caplog.records if r.levelno >= logging.WARNING]
        # Backoff doubles from one second: a minute has room for few steps even where the jitter is kind.
        assert 2 <= len(failures) <= 25
        assert len(tries) <= len(failures) + 2, [r.getMessage() for r in tries]
        assert not any(watcher.restarts for watcher in watchers)
        await until(is_empty(pubsub, orders), "an empty subscription")


@pytest.mark.parametrize("batch_size", [1, 100])
async def test_ordered_keys_keep_their_order_through_failures(own: Own, batch_size: int) -> None:
    """Not on Google's emulator, which repeats a failed message alone and behind those that followed it."""
    orders = own.subscription(ordered=True)
    for start in range(0, 1000, 50):
        for n in range(start, start + 50):
            await send(orders, numbered(1, n), ordering_key=f"key-{n % 50}")
    async with triggerer() as running:
        watcher = running.start(
            trigger(
                own,
                orders,
                apply_function=f"{FILTERS}.fail_every_twentieth_once",
                on_error="release",
                release_delay_seconds=1,
                batch_size=batch_size,
            )
        )
        await until(lambda: len(set(watcher.ids)) == 1000, "all thousand", 3 * LONG_SECONDS)
        await until(is_empty(own, orders), "an empty subscription")
        for key in range(50):
            seen = [n for n in numbers(watcher) if n % 50 == key]
            expected = list(range(key, 1000, 50))
            assert sorted(set(seen)) == expected
            # Whatever was seen of a key before the one that failed came back is seen again behind it.
            last = [max(at for at, n in enumerate(seen) if n == number) for number in expected]
            assert last == sorted(last), seen
            for failed in (n for n in expected if n % 20 == 0):
                at = seen.index(failed)
                following = expected[expected.index(failed) + 1 :]
                # Up to the next one that fails it goes on in order from there.
                until_next = [n for n in following if all(m % 20 for m in range(following[0], n + 1, 50))]
                assert seen[at + 1 : at + 1 + len(until_next)] == until_next, seen
        assert {message["key"] for message in watcher.messages} == {f"key-{key}" for key in range(50)}


@pytest.mark.slow
async def test_nothing_is_left_of_a_hundred_streams(pubsub: PubSub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")
    orders = pubsub.subscription()
    streams = pubsub.open_streams
    counts = []
    for number in range(100):
        async with triggerer() as running:
            watcher = running.start(trigger(pubsub, orders))
            await send(orders, numbered(1, number))
            await until(lambda watcher=watcher: watcher.ids, "a message")
        if number in (9, 99):
            counts.append(await census())
    assert counts[1].tasks <= counts[0].tasks
    assert counts[1].threads <= counts[0].threads
    assert counts[1].sockets <= counts[0].sockets + 1
    await until(lambda: pubsub.open_streams == streams, "the streams' end")


async def test_what_the_message_says_of_itself(pubsub: PubSub) -> None:
    orders = pubsub.subscription(ordered=True, max_delivery_attempts=7)
    async with triggerer() as running:
        watcher = running.start(trigger(pubsub, orders))
        (sent,) = await send(orders, ['{"a": 1}'], attributes={"colour": "grün"}, ordering_key="k1")
        await until(lambda: watcher.messages, "the message")
        message = watcher.messages[0]
        assert message["id"] == sent
        assert message["headers"] == {"colour": "grün"}
        assert message["key"] == "k1"
        assert message["attributes"] == {
            "subscription": orders.name,
            "message_id": sent,
            "ordering_key": "k1",
            "delivery_attempt": 1,
        }
        assert message["delivery_count"] == 1
        assert message["published_at"].endswith("+00:00")
        assert watcher.events[0].payload["source"] == "pubsub"
        assert watcher.events[0].payload["stream"] == orders.name


async def test_a_subscription_may_be_named_in_full_and_the_project_by_the_connection(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    for project, name in ((None, orders.name), (None, orders.path), (pubsub.project, orders.path)):
        async with triggerer() as running:
            watcher = running.start(PubSubSharedStreamTrigger(project, name, gcp_conn_id=CONN_ID))
            await send(orders, numbered(1))
            await until(lambda watcher=watcher: watcher.bodies, f"a message through {name} of {project}")


async def test_a_message_of_the_largest_size_is_received_and_refused(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    assert orders.dead_letters is not None
    async with triggerer() as running:
        watcher = running.start(trigger(pubsub, orders, dead_letter_topic=orders.dead_letters.name, decode="json"))
        await send(orders, ["x" * 9_990_000])
        await send(orders, numbered(1))
        await until(is_empty(pubsub, orders), "an empty subscription")
        letters = await asyncio.to_thread(orders.dead_letters.take)
        assert [len(letter.message.data) for letter in letters] == [9_990_000]
        assert numbers(watcher) == [0]

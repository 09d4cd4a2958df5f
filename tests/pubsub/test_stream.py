"""The promises of the Pub/Sub trigger, under watchers on Airflow's real `SharedStreamManager`: on Google's emulator and
on the tests' own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from itertools import takewhile
from typing import Any

import pytest

from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger
from tests.airflow_loop import LONG_SECONDS, repeated, triggerer, until
from tests.pubsub.conftest import CONN_ID, Own, PubSub, is_empty, send, trigger
from tests.pubsub.consumers import numbers, texts

FILTERS = "tests.pubsub.filters"


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
        calls = Counter(pubsub.calls)
        await asyncio.sleep(8)
        assert not Counter(pubsub.calls) - calls
    await until(lambda: pubsub.open_streams == streams, "the stream's end")


async def test_poison_goes_to_the_dead_letter_topic_with_its_reason(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    assert orders.dead_letters is not None
    topic = orders.dead_letters.name
    async with triggerer() as running:
        careful = running.start(
            trigger(pubsub, orders, dead_letter_topic=topic, apply_function="tests.filters.explode_on_poison")
        )
        sibling = running.start(trigger(pubsub, orders, dead_letter_topic=topic))
        strict = running.start(trigger(pubsub, orders, dead_letter_topic=topic, decode="json", match="body.n >= `0`"))
        sent = await send(orders, [*texts(50), '{"n": 50, "poison": true}'], attributes={"colour": "grün"})
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
    letters = orders.dead_letters
    assert letters is not None
    async with triggerer() as running:
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            careful = running.start(
                trigger(
                    pubsub,
                    orders,
                    apply_function="tests.filters.explode_on_poison",
                    release_delay_seconds=0,
                    batch_size=1,
                )
            )
            sent = await send(orders, [*texts(10), '{"n": 10, "poison": true}'])
            found: list[Any] = []

            async def dead() -> bool:
                found.extend(await asyncio.to_thread(letters.take))
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


@pytest.mark.parametrize("batch_size", [1, 100])
@pytest.mark.parametrize("shift", [0, 1], ids=["five keys fail ten times each", "nearly all keys fail once"])
async def test_ordered_keys_keep_their_order_through_failures(own: Own, batch_size: int, shift: int) -> None:
    """Not on Google's emulator, which repeats a failed message alone and behind those that followed it."""

    def key_of(n: int) -> int:
        return (n + shift * (n // 50)) % 50

    orders = own.subscription(ordered=True)
    for n in range(1000):
        await send(orders, texts(1, n), ordering_key=f"key-{key_of(n)}")
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
        failing = set()
        for key in range(50):
            seen = [n for n in numbers(watcher) if key_of(n) == key]
            expected = [n for n in range(1000) if key_of(n) == key]
            assert sorted(set(seen)) == expected
            # Whatever was seen of a key before the one that failed came back is seen again behind it.
            last = [max(at for at, n in enumerate(seen) if n == number) for number in expected]
            assert last == sorted(last), seen
            for failed in (n for n in expected if n % 20 == 0):
                failing.add(key)
                at = seen.index(failed)
                # Up to the next one that fails it goes on in order from there.
                until_next = list(takewhile(lambda n: n % 20, expected[expected.index(failed) + 1 :]))
                assert seen[at + 1 : at + 1 + len(until_next)] == until_next, seen
        assert len(failing) == (45 if shift else 5)
        assert {message["key"] for message in watcher.messages} == {f"key-{key}" for key in range(50)}


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
            await send(orders, texts(1))
            await until(lambda watcher=watcher: watcher.bodies, f"a message through {name} of {project}")


async def test_a_message_of_the_largest_size_is_received_and_refused(pubsub: PubSub) -> None:
    orders = pubsub.subscription()
    assert orders.dead_letters is not None
    async with triggerer() as running:
        watcher = running.start(trigger(pubsub, orders, dead_letter_topic=orders.dead_letters.name, decode="json"))
        await send(orders, ["x" * 9_990_000])
        await send(orders, texts(1))
        await until(is_empty(pubsub, orders), "an empty subscription")
        letters = await asyncio.to_thread(orders.dead_letters.take)
        assert [len(letter.message.data) for letter in letters] == [9_990_000]
        assert numbers(watcher) == [0]

"""The promises of the Service Bus trigger, on a server under watchers on Airflow's real `SharedStreamManager`."""

from __future__ import annotations

import asyncio
import json

import pytest

from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from tests.airflow_loop import triggerer, until
from tests.service_bus.conftest import ServiceBus, body_of, emptied, send, trigger

FILTERS = "tests.service_bus.filters"


@pytest.fixture(autouse=True)
def _no_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")


async def test_twenty_watchers_are_one_connection_that_costs_little_while_idle(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    opened = service_bus.proxy.opened
    async with triggerer() as running:
        watchers = [running.start(trigger(queue, match={"body.watcher": n})) for n in range(20)]
        await send(service_bus, queue, [{"watcher": n % 20, "n": n} for n in range(200)])
        await until(lambda: all(len(w.ids) >= 10 for w in watchers), "ten messages at each watcher")
        await until(emptied(service_bus, queue), "an empty queue")
        for number, watcher in enumerate(watchers):
            assert sorted(body["n"] for body in watcher.bodies) == list(range(number, 200, 20))
        assert service_bus.proxy.opened - opened == 1
        # Of tests before this one.
        await until(lambda: service_bus.proxy.open == 1, "no other connection")
        before = service_bus.proxy.bytes_up + service_bus.proxy.bytes_down
        await asyncio.sleep(10)
        # Credit for what may come, twice; no renewals, no polls.
        assert service_bus.proxy.bytes_up + service_bus.proxy.bytes_down - before < 1000
        assert service_bus.proxy.opened - opened == 1


async def test_a_slow_watcher_keeps_nobody_waiting(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    await send(service_bus, queue, [{"n": n} for n in range(500)])
    async with triggerer(store_seconds=0.02, confirm_seconds=0.5) as running:
        slow = running.start(trigger(queue, apply_function="tests.filters.three_seconds"))
        quick = [running.start(trigger(queue)) for _ in range(3)]
        await until(lambda: all(len(w.ids) == 500 for w in quick), "500 at each quick watcher")
        assert len(slow.ids) < 500, "the slow watcher was not slow"
        await until(lambda: len(slow.ids) == 500, "500 at the slow watcher")
        await until(emptied(service_bus, queue), "an empty queue")


async def test_poison_is_dead_lettered_with_reason_and_description(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        careful = running.start(trigger(queue, apply_function="tests.filters.explode_on_poison"))
        sibling = running.start(trigger(queue))
        strict = running.start(trigger(queue, decode="json", match="body.n >= `0`"))
        await send(service_bus, queue, [{"n": n} for n in range(50)] + [{"n": 50, "poison": True}, "not JSON at all"])
        await until(emptied(service_bus, queue), "an empty queue")
        letters = {body_of(m): m for m in await asyncio.to_thread(service_bus.take_dead_letters, queue)}
        assert set(letters) == {'{"n": 50, "poison": true}', "not JSON at all"}
        poison = letters['{"n": 50, "poison": true}']
        assert "poison" in poison.dead_letter_reason
        assert "JSON" in letters["not JSON at all"].dead_letter_reason
        told = json.loads(poison.dead_letter_error_description)
        assert told["watcher"] == f"trigger {careful.number}"
        assert told["origin"].endswith(f"/{queue}")
        assert told["delivery_count"] == 1
        assert told["delivery_id"].endswith(f"/{queue}/51")
        assert {body["n"] for body in careful.bodies if isinstance(body, dict)} == set(range(50))
        assert {body["n"] for body in strict.bodies} == set(range(51))
        assert {body["n"] for body in sibling.bodies if isinstance(body, dict)} == set(range(51))
        assert not any(watcher.restarts for watcher in (careful, sibling, strict))


async def test_dead_letters_are_watched_with_their_reasons(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        running.start(trigger(queue, apply_function=f"{FILTERS}.refuse"))
        undertaker = running.start(trigger(queue, sub_queue="deadletter"))
        await send(service_bus, queue, [{"n": 1}], properties={"colour": "grün"})
        await until(lambda: undertaker.messages, "the dead letter")
        (message,) = undertaker.messages
        assert message["body"] == {"n": 1}
        assert message["headers"]["colour"] == "grün"
        assert message["attributes"]["dead_letter_reason"] == "unwanted"
        assert json.loads(message["attributes"]["dead_letter_error_description"])["watcher"]
        assert message["attributes"]["sub_queue"] == "deadletter"

        async def gone() -> bool:
            return await asyncio.to_thread(service_bus.count_dead_letters, queue) == 0

        await until(gone, "no dead letters")


async def test_one_sibling_accepts_and_one_rejects(service_bus: ServiceBus) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        accepts = running.start(trigger(queue))
        rejects = running.start(trigger(queue, apply_function=f"{FILTERS}.refuse"))
        await send(service_bus, queue, [{"n": 1}])
        await until(emptied(service_bus, queue), "an empty queue")
        (letter,) = await asyncio.to_thread(service_bus.take_dead_letters, queue)
        assert body_of(letter) == '{"n": 1}'
        assert letter.dead_letter_reason == "unwanted"
        # Whatever would come again comes at once.
        await asyncio.sleep(2)
        assert accepts.bodies == [{"n": 1}]
        assert rejects.events == []
        assert len(accepts.events) == 1


async def test_a_subscription_of_a_topic(service_bus: ServiceBus) -> None:
    topic, subscription = service_bus.subscription()
    async with triggerer() as running:
        watcher = running.start(
            ServiceBusSharedStreamTrigger(
                topic_name=topic, subscription_name=subscription, azure_service_bus_conn_id=ServiceBus.conn_id
            )
        )
        await send(service_bus, topic, [{"n": n} for n in range(20)])
        await until(lambda: len(watcher.ids) >= 20, "20 messages")
        await until(emptied(service_bus, f"{topic}/Subscriptions/{subscription}"), "an empty subscription")
        assert sorted(body["n"] for body in watcher.bodies) == list(range(20))
        assert watcher.messages[0]["attributes"]["topic"] == topic
        assert watcher.messages[0]["attributes"]["subscription"] == subscription
        assert watcher.events[0].payload["stream"] == f"{topic}/{subscription}"

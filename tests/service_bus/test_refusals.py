"""What can't work is said in one clear line, which says what to change."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.service_bus import delivery as service_bus_delivery
from airflow_provider_sharedstream.brokers.service_bus.adapter import ServiceBusConsumer
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable
from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger
from tests.airflow_loop import triggerer, until
from tests.emulators.service_bus import RemoteControl
from tests.service_bus.conftest import ServiceBus, emptied, send, through, trigger

Connect = Callable[[dict[str, Any]], str]


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Makes an Airflow connection of these fields; returns its id."""

    def make(fields: dict[str, Any]) -> str:
        monkeypatch.setenv("AIRFLOW_CONN_SERVICE_BUS_OTHER", json.dumps({"conn_type": "azure_service_bus", **fields}))
        return "service_bus_other"

    return make


async def refusal(*arguments: Any, **more: Any) -> str:
    """What a connect is refused with."""
    consumer = ServiceBusConsumer(*arguments, **{"azure_service_bus_conn_id": ServiceBus.conn_id, **more})
    try:
        with pytest.raises(SourceUnavailable) as caught:
            await asyncio.wait_for(consumer.connect(), 60)
        assert not consumer.is_transient(caught.value)
        assert "\n" not in str(caught.value)
        return str(caught.value)
    finally:
        await consumer.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "expected queue_name, or topic_name with subscription_name"),
        ({"queue_name": "q", "topic_name": "t", "subscription_name": "s"}, "expected one of them, not both"),
        ({"topic_name": "t"}, "expected the name of the topic's subscription"),
        ({"subscription_name": "s"}, "expected the name of its topic"),
        ({"queue_name": "q", "subscription_name": "s"}, "expected the name of its topic"),
        ({"queue_name": ""}, "queue_name='': expected"),
        ({"queue_name": "q", "sub_queue": "dead"}, "'deadletter', 'transferdeadletter'"),
        ({"queue_name": "q", "sub_queue": "deadletter", "session_enabled": True}, "dead letters have no sessions"),
        ({"queue_name": "q", "max_concurrent_sessions": 0}, "max_concurrent_sessions=0"),
        ({"queue_name": "q", "session_enabled": "yes"}, "session_enabled='yes': expected True or False"),
    ],
)
def test_wrong_arguments_are_import_errors(arguments: dict[str, Any], text: str) -> None:
    made = ServiceBusSharedStreamTrigger(**arguments)
    with pytest.raises(InvalidArgument) as caught:
        made.serialize()
    assert text in str(caught.value)


def test_what_is_stored_makes_the_same_trigger() -> None:
    made = ServiceBusSharedStreamTrigger(topic_name="t", subscription_name="s", session_enabled=True, match="body.a")
    path, stored = made.serialize()
    assert path == "airflow_provider_sharedstream.triggers.service_bus.ServiceBusSharedStreamTrigger"
    assert stored == {"topic_name": "t", "subscription_name": "s", "session_enabled": True, "match": "body.a"}
    again = ServiceBusSharedStreamTrigger(**stored)
    assert again.serialize() == (path, stored)
    assert again.shared_stream_key() == made.shared_stream_key()


async def test_a_missing_entity(service_bus: ServiceBus) -> None:
    text = await refusal("no-such-queue")
    assert text.startswith("queue_name='no-such-queue': the namespace 127.0.0.1:")
    assert "has nothing of that name" in text
    assert f"azure_service_bus_conn_id={ServiceBus.conn_id!r}" in text
    text = await refusal(topic_name="no-topic", subscription_name="s")
    assert text.startswith("topic_name='no-topic', subscription_name='s': the namespace")
    text = await refusal("no-such-queue", session_enabled=True)
    assert "has nothing of that name" in text


async def test_a_topic_in_the_place_of_a_queue(service_bus: ServiceBus) -> None:
    topic, _ = service_bus.subscription()
    assert "does not allow this" in await refusal(topic)


async def test_a_wrong_key(service_bus: ServiceBus, connection: Connect) -> None:
    wrong = service_bus.connection_string.replace("SharedAccessKey=", "SharedAccessKey=not")
    text = await refusal(service_bus.queue(), azure_service_bus_conn_id=connection({"schema": wrong}))
    assert text.startswith("azure_service_bus_conn_id='service_bus_other': Service Bus refuses its credentials")
    assert "InvalidSignature" in text
    assert "not" + "SAS" not in text


async def test_no_right_to_listen(service_bus: ServiceBus, orders: RemoteControl, connection: Connect) -> None:
    orders.add_key("sender", "its-secret", ["Send"])
    string = through(orders.connection_string("sender"), service_bus.proxy.port)
    queue = service_bus.queue()
    text = await refusal(queue, azure_service_bus_conn_id=connection({"schema": string}))
    assert text.startswith(
        f"queue_name={queue!r}: azure_service_bus_conn_id='service_bus_other' may not receive from it"
    )
    assert "the right Listen" in text


async def test_sessions_where_there_are_none_and_the_other_way_round(service_bus: ServiceBus) -> None:
    plain, with_sessions = service_bus.queue(), service_bus.queue(requires_session=True)
    text = await refusal(plain, session_enabled=True)
    assert text == f"queue_name={plain!r}: it has no sessions. Set session_enabled=False."
    text = await refusal(with_sessions)
    assert text == f"queue_name={with_sessions!r}: it requires sessions. Set session_enabled=True."


async def test_a_connection_string_of_another_queue(service_bus: ServiceBus, connection: Connect) -> None:
    string = service_bus.connection_string + "EntityPath=another;"
    text = await refusal(service_bus.queue(), azure_service_bus_conn_id=connection({"schema": string}))
    assert "does not match" in text


async def test_a_deleted_entity_is_said_and_held(
    service_bus: ServiceBus, orders: RemoteControl, caplog: pytest.LogCaptureFixture
) -> None:
    queue = service_bus.queue()
    async with triggerer() as running:
        watcher = running.start(trigger(queue))
        await send(service_bus, queue, [{"n": 1}])
        await until(lambda: watcher.ids, "the first message")
        await until(emptied(service_bus, queue), "an empty queue")
        orders.delete(queue)
        await until(lambda: "has nothing of that name" in caplog.text, "a clear line")
        assert not watcher.restarts
    lines = [r.getMessage() for r in caplog.records if "has nothing of that name" in r.getMessage()]
    assert lines[0].startswith(f"service_bus {queue} can't be used, next try in ")


@pytest.mark.parametrize("sessions", [False, True])
async def test_a_disabled_entity(
    service_bus: ServiceBus, orders: RemoteControl, caplog: pytest.LogCaptureFixture, sessions: bool
) -> None:
    queue = service_bus.queue(requires_session=sessions)
    expected = f"queue_name={queue!r}: it is disabled for receiving. Set its status to Active."
    async with triggerer() as running:
        watcher = running.start(trigger(queue, session_enabled=sessions))
        await send(service_bus, queue, [{"n": 1}], session_id="a" if sessions else None)
        await until(lambda: watcher.ids, "the first message")
        orders.disable(queue)
        await until(lambda: expected in caplog.text, "a clear line")
        assert not watcher.restarts
    assert await refusal(queue, session_enabled=sessions) == expected


async def test_each_is_said_once_a_try_and_tried_seldom(
    service_bus: ServiceBus,
    orders: RemoteControl,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")
    orders.add_key("no-listener", "its-secret", ["Send"])
    strings = {
        "SERVICE_BUS_WRONG_KEY": service_bus.connection_string.replace("SharedAccessKey=", "SharedAccessKey=not"),
        "SERVICE_BUS_NO_LISTENER": through(orders.connection_string("no-listener"), service_bus.proxy.port),
    }
    for name, string in strings.items():
        fields = {"conn_type": "azure_service_bus", "schema": string}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(fields))
    topic, _ = service_bus.subscription()
    conn_id = {"azure_service_bus_conn_id": ServiceBus.conn_id}
    bad: dict[str, dict[str, Any]] = {
        "has nothing of that name": {"queue_name": "nowhere", **conn_id},
        "subscription_name='nowhere': the namespace": {"topic_name": topic, "subscription_name": "nowhere", **conn_id},
        "does not allow this": {"queue_name": topic, **conn_id},
        "refuses its credentials": {
            "queue_name": service_bus.queue(),
            "azure_service_bus_conn_id": "service_bus_wrong_key",
        },
        "may not receive from it": {
            "queue_name": service_bus.queue(),
            "azure_service_bus_conn_id": "service_bus_no_listener",
        },
        "Set session_enabled=False": {"queue_name": service_bus.queue(), "session_enabled": True, **conn_id},
        "Set session_enabled=True": {"queue_name": service_bus.queue(requires_session=True), **conn_id},
        "there is no such connection": {"queue_name": "any", "azure_service_bus_conn_id": "service_bus_nobody"},
    }

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if "can't be used, next try in" in r.getMessage()]

    async with triggerer() as running:
        for arguments in bad.values():
            running.start(ServiceBusSharedStreamTrigger(**arguments))
        await until(lambda: len(lines()) == len(bad), "a line about each")
        opened = service_bus.proxy.opened
        await asyncio.sleep(5)
        assert service_bus.proxy.opened == opened, "tried again at once"
        assert not any(watcher.restarts for watcher in running.watchers)
    assert len(lines()) == len(bad)
    for text in bad:
        assert sum(text in line for line in lines()) >= 1, text
    # The first wait; each later one is longer.
    assert all(float(re.findall(r"next try in (\d+(?:\.\d+)?) s", line)[0]) >= 15 for line in lines())


async def test_a_clock_that_is_off(service_bus: ServiceBus, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ahead(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(timezone.utc) + timedelta(minutes=10)

    plain, with_sessions = service_bus.queue(), service_bus.queue(requires_session=True)
    await send(service_bus, plain, [{"n": 1}])
    await send(service_bus, with_sessions, [{"n": 1}], session_id="a")
    monkeypatch.setattr(service_bus_delivery, "datetime", Ahead)
    assert "Set the clock" in await refusal(with_sessions, session_enabled=True)
    consumer = ServiceBusConsumer(plain, azure_service_bus_conn_id=ServiceBus.conn_id)
    await consumer.connect()
    with pytest.raises(SourceUnavailable, match="Set the clock"):
        await consumer.receive(10)
    await consumer.close()

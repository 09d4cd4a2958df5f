"""What this package's `KafkaSharedStreamTrigger` and the official provider's do with the same broker and input.

Run it in an environment that has both this package and ``apache-airflow-providers-apache-kafka`` (which is in no
constraints file here, since nothing else needs it)::

    python -m venv /tmp/comparison
    /tmp/comparison/bin/pip install -c constraints.txt apache-airflow-core apache-airflow-providers-apache-kafka \
        aiokafka psutil cryptography pytest pytest-asyncio -e .
    /tmp/comparison/bin/python -m benchmarks.kafka_comparison

Both run under Airflow's own ``SharedStreamManager``, with the steps of its triggerer around it: a trigger that fails is
started again (after 2 s), events are stored one by one and confirmed once a second. It prints a Markdown table.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from airflow.providers.apache.kafka.triggers.shared_stream import KafkaSharedStreamTrigger as Official
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import reject_shared_stream_event

from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger as Ours
from services.kafka import KafkaServer
from tests.airflow_loop import Triggerer, Watcher, triggerer
from tests.kafka.conftest import Topic, other_member, records_of

NUMBERS = itertools.count()
SECONDS = 30.0
"""How long each scenario may take to come to its end."""
QUICK = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "500", "auto.offset.reset": "earliest"}


class Side(NamedTuple):
    """One of the two.

    :param trigger: makes one on a topic; its dead-letter topic, or None.
    :param numbers: what a watcher's events hold.
    """

    name: str
    trigger: Callable[[Topic, str | None], Any]
    numbers: Callable[[Watcher], list[Any]]


def official(topic: Topic, dead_letter_topic: str | None) -> Any:
    return Official(topics=[topic.name], kafka_config_id=connection(topic), dlq_topic=dead_letter_topic)


def ours(topic: Topic, dead_letter_topic: str | None) -> Any:
    connection(topic)
    return Ours([topic.name], kafka_config_id=topic.conn_id, dead_letter_topic=dead_letter_topic, batch_size=20)


def connection(topic: Topic) -> str:
    """Each topic has a connection of its own, since the official trigger takes the group from there."""
    extra = {**QUICK, "group.id": topic.group, "enable.auto.commit": "false"}
    os.environ[f"AIRFLOW_CONN_{topic.conn_id.upper()}"] = topic.server.connection(extra)
    return topic.conn_id


def payloads(watcher: Watcher) -> list[Any]:
    found = []
    for event in watcher.events:
        with contextlib.suppress(Exception):
            found.append(json.loads(event.payload)["n"] if isinstance(event.payload, str) else event.payload)
    return found


def bodies(watcher: Watcher) -> list[Any]:
    return [body["n"] if isinstance(body, dict) else body for body in watcher.bodies]


SIDES = (Side("official", official, payloads), Side("ours", ours, bodies))


def rejecting(trigger: Any) -> Any:
    """Return a trigger like this one that refuses what says so, by Airflow's own means."""
    if isinstance(trigger, Ours):
        trigger.arguments["apply_function"] = "tests.kafka.filters.reject_marked"
        return trigger

    class Strict(Official):  # type: ignore[misc]
        async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
            async for value in shared_stream:
                if value is None or json.loads(value).get("reject"):
                    reject_shared_stream_event()
                else:
                    yield TriggerEvent(self._decode(value))

    return Strict(**trigger.serialize()[1])


def slow(trigger: Any) -> Any:
    """Return a trigger like this one that takes a twentieth of a second for each record."""
    base = Ours if isinstance(trigger, Ours) else Official

    class Slow(base):  # type: ignore[misc, valid-type]
        async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
            async for raw in shared_stream:
                if base is Official:
                    await asyncio.sleep(0.05)
                    yield TriggerEvent(self._decode(raw))
                    continue
                found = []
                for message in raw:
                    await asyncio.sleep(0.05)
                    found.append(message.as_dict())
                yield TriggerEvent({"messages": found})

    return Slow(**trigger.serialize()[1])


async def fresh(server: KafkaServer, partitions: int = 2) -> Topic:
    name = f"c{next(NUMBERS)}"
    async with server.admin() as admin:
        await admin.create_topic(name, partitions)
        await admin.create_topic(f"{name}-rejected")
        await admin.create_topic(f"{name}-other")
    return Topic(server, f"kafka_{name}", name, partitions, f"{name}-rejected")


async def within(seconds: float, condition: Callable[[], Any]) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return True
        await asyncio.sleep(0.2)
    return False


@contextlib.asynccontextmanager
async def airflow(**settings: Any) -> AsyncIterator[Triggerer]:
    async with triggerer(
        **{"confirm_seconds": 1.0, "store_seconds": 0.02, "restart_seconds": 2.0, **settings}
    ) as running:
        yield running


def facts(side: Side, watcher: Watcher, expected: Iterable[Any]) -> str:
    found = side.numbers(watcher)
    wanted = set(expected)
    lost, twice = wanted - set(found), len(found) - len(set(map(str, found)))
    return f"{len(wanted) - len(lost)} of {len(wanted)} stored, {twice} of them twice, {watcher.restarts} restarts"


async def poison(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server, 1)
    async with airflow() as running:
        watcher = running.start(side.trigger(topic, topic.dead_letter_topic), restart=True)
        sibling = running.start(side.trigger(topic, topic.dead_letter_topic), restart=True)
        await topic.send_json([{"n": n} for n in range(10)])
        await topic.send([b"\xff\xfe poison"])
        await topic.send_json([{"n": n} for n in range(10, 20)])
        await within(SECONDS, lambda: set(range(20)) <= set(side.numbers(watcher)) & set(side.numbers(sibling)))
        await within(8, lambda: _is_empty(topic))
        kept = any(value not in range(20) for value in side.numbers(watcher))
        left = await topic.pending()
    where = "in an event, as base64" if kept else f"in no event, and {len(await topic.dead_letters())} dead letters"
    return f"{facts(side, watcher, range(20))}; the poison is {where}; {left} of 21 not committed"


async def _is_empty(topic: Topic) -> bool:
    return await topic.pending() == 0


async def rejected(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server, 1)
    async with airflow() as running:
        watcher = running.start(rejecting(side.trigger(topic, topic.dead_letter_topic)), restart=True)
        await topic.send_json([{"n": n, "reject": n == 5} for n in range(20)], key=b"k", headers=[("trace", b"1")])
        expected = set(range(20)) - {5}
        await within(SECONDS, lambda: expected <= set(side.numbers(watcher)))
        await within(10, lambda: _is_empty(topic))
        left = await topic.pending()
    letters = await topic.dead_letters()
    if not letters:
        return f"{facts(side, watcher, expected)}; no dead letter; {left} of 20 not committed"
    names = [name for name, _ in letters[0].headers]
    said = f"with key {letters[0].key!r} and headers {', '.join(names) or 'none'}"
    return f"{facts(side, watcher, expected)}; {len(letters)} dead letter {said}; {left} of 20 not committed"


async def tombstone(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server, 1)
    async with airflow() as running:
        watcher = running.start(side.trigger(topic, None), restart=True)
        await topic.send([None], key=b"customer-7")
        await within(SECONDS, lambda: watcher.events)
        found = [event.payload for event in watcher.events]
    if not found:
        return "no event"
    payload = found[0]
    if isinstance(payload, dict):
        message = payload["messages"][0]
        payload = {name: message[name] for name in ("body", "key")}
    return f"an event with the payload {json.dumps(payload)}"


async def restart(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server)
    async with airflow() as running:
        watchers = [running.start(side.trigger(topic, None), restart=True) for _ in range(3)]
        await topic.send_json([{"n": n} for n in range(40)])
        await within(SECONDS, lambda: all(len(side.numbers(w)) >= 40 for w in watchers))
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(10)
        await asyncio.to_thread(server.start)
        await topic.send_json([{"n": n} for n in range(40, 80)])
        await within(SECONDS, lambda: all(set(range(80)) <= set(side.numbers(w)) for w in watchers))
        return facts(side, watchers[0], range(80))


async def full_queue(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server)
    count = 500
    await topic.send_json([{"n": n} for n in range(count)])
    async with airflow(store_seconds=0.0, queue_size=100) as running:
        watcher = running.start(slow(side.trigger(topic, None)), restart=True)
        began = time.monotonic()
        await within(120, lambda: set(range(count)) <= set(side.numbers(watcher)))
        took = time.monotonic() - began
        return f"{facts(side, watcher, range(count))}, after {took:.0f} s"


async def rebalance(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server, 4)
    count = 1000
    async with airflow(store_seconds=0.005) as running:
        watcher = running.start(side.trigger(topic, None), restart=True)
        await topic.send_json([{"n": n} for n in range(200)])
        await within(SECONDS, lambda: len(side.numbers(watcher)) >= 50)
        other = asyncio.create_task(other_member(topic, 4.0))
        for start in range(200, count, 100):
            await topic.send_json([{"n": n} for n in range(start, start + 100)])
            await asyncio.sleep(0.5)
        theirs = await other
        done = await within(SECONDS, lambda: set(range(count)) <= set(side.numbers(watcher)) | set(theirs))
        mine = side.numbers(watcher)
        both = set(mine) | set(theirs)
        again = len(mine) + len(theirs) - len(both)
        return (
            f"{len(both & set(range(count)))} of {count} reached one of the two members{'' if done else ' in time'}, "
            f"{again} of them twice, {watcher.restarts} restarts"
        )


async def dead_letter_topics(server: KafkaServer, side: Side) -> str:
    topic = await fresh(server, 1)
    async with airflow() as running:
        first = running.start(rejecting(side.trigger(topic, topic.dead_letter_topic)), restart=True)
        second = running.start(rejecting(side.trigger(topic, f"{topic.name}-other")), restart=True)
        await asyncio.sleep(8)
        await topic.send_json([{"n": n, "reject": n == 1} for n in range(3)])
        await within(15, lambda: {0, 2} <= set(side.numbers(first)) & set(side.numbers(second)))
        await asyncio.sleep(3)
        stored = [len(side.numbers(watcher)) for watcher in (first, second)]
        left = await topic.pending()
    letters = [len(await records_of(server, f"{topic.name}-{end}")) for end in ("rejected", "other")]
    return (
        f"events of the two watchers: {stored}; letters in the one and the other topic: {letters}; "
        f"{left} of 3 not committed"
    )


SCENARIOS: dict[str, Callable[[KafkaServer, Side], Any]] = {
    "a poison record (no text) among twenty": poison,
    "a record that a watcher rejects": rejected,
    "a tombstone": tombstone,
    "a broker that is away for ten seconds; three watchers": restart,
    "500 records waiting, a watcher that takes 20 a second, a queue of 100": full_queue,
    "another member joins and leaves": rebalance,
    "two watchers of one topic with different dead-letter topics": dead_letter_topics,
}


async def main(wanted: list[str]) -> None:
    logging.disable(logging.CRITICAL)
    rows: dict[str, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder, KafkaServer(Path(folder)) as server:
        os.environ["AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS"] = "0.5"
        for name, scenario in SCENARIOS.items():
            if wanted and scenario.__name__ not in wanted:
                continue
            rows[name] = {}
            for side in SIDES:
                try:
                    rows[name][side.name] = await scenario(server, side)
                except Exception as error:
                    rows[name][side.name] = f"the comparison broke: {error!r}"
                print(f"{name}: {side.name}: {rows[name][side.name]}", file=sys.stderr, flush=True)
        taken = server.taken
    provider = version("apache-airflow-providers-apache-kafka")
    print(f"{taken}; apache-airflow-providers-apache-kafka {provider}\n")
    print(f"| what happens | official provider {provider} | this package |\n|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row.get('official')} | {row.get('ours')} |")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))

"""A source's messages through the whole machine, next to its client library alone: one way for all sources.

A round is a reading by the library alone, and one for each kind of watcher through Airflow's own `SharedStreamManager`,
all of as many messages on the same server in the same process, from the first message's arrival to the last one's
settlement. Events are confirmed at once, as by a database that takes no time. What is compared is what one round shows:
a busy minute concerns both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

import psutil
import structlog
from airflow.triggers.base import TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager

from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

ROUNDS = 5
LOOK_SECONDS = 0.001
LIMIT_SECONDS = 300.0

WATCHERS: dict[str, dict[str, Any]] = {
    "counts only": {},
    "decodes and matches": {"match": "body.region == 'nowhere'"},
    "all in events": {},
}
"""Kinds of watchers, by what they do with a message, and their arguments."""


class Reading(NamedTuple):
    """What was measured once."""

    rate: float
    """Messages a second."""
    cpu_microseconds: float
    """Of this process, a message."""
    megabytes: Sequence[int] = ()
    """Resident memory after each tenth."""


class Source(Protocol):
    """One kind of source, with a server that runs."""

    name: str

    @property
    def trigger_class(self) -> type[BrokerEventTrigger]:
        """The source's trigger."""

    async def fill(self, messages: int) -> Any:
        """Return a place (a queue, a group) with so many messages that wait."""

    async def alone(self, place: Any, progress: Progress) -> None:
        """Read and settle all that waits, by the client library."""

    def arguments(self, place: Any) -> dict[str, Any]:
        """Return the trigger's arguments for a place."""


class Progress:
    """How far a reading is."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.arrived = 0
        self.settled = 0

    async def measured(self) -> Reading:
        """Wait from the first message's arrival to the last one's settlement."""
        process, deadline = psutil.Process(), time.monotonic() + LIMIT_SECONDS
        megabytes: list[int] = []
        began = cpu = 0.0
        while self.settled < self.messages:
            assert time.monotonic() < deadline, f"{self.settled} of {self.messages} after {LIMIT_SECONDS} s"
            self.look()
            if self.arrived and not began:
                began, cpu = time.perf_counter(), time.process_time()
            if self.settled * 10 >= self.messages * (len(megabytes) + 1):
                megabytes.append(process.memory_info().rss // 2**20)
            await asyncio.sleep(LOOK_SECONDS)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        return Reading(self.settled / seconds, cpu / self.settled * 1e6, megabytes)

    def look(self) -> None:
        """Bring the numbers up to date, where nobody else does."""


class HoldingsProgress(Progress):
    """How far a stream is, by what it holds and has settled."""

    def __init__(self, messages: int, holdings: Any) -> None:
        super().__init__(messages)
        self._holdings = holdings

    def look(self) -> None:
        self.settled = self._holdings.sealed[Disposition.ACCEPT]
        self.arrived = self.settled + len(self._holdings.budget)


def bodies(messages: int) -> list[str]:
    """Return JSON of some 200 bytes."""
    padding = "x" * 130
    regions = ["eu", "us", "ap", "sa"]
    return [
        json.dumps({"order": n, "region": regions[n % 4], "amount": 120.5, "padding": padding}) for n in range(messages)
    ]


def trigger_of(source: Source, place: Any, watcher: str, producers: list[Any]) -> BrokerEventTrigger:
    """Build a watcher's trigger, whose producer is put on a list."""

    class Measured(source.trigger_class):  # type: ignore[misc,name-defined]
        @classmethod
        def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> Any:
            producers.append(super().create_shared_stream_producer(kwargs))
            return producers[-1]

    class Counting(Measured):
        async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
            async for batch in shared_stream:
                yield TriggerEvent({"messages": len(batch)})

    made = Counting if watcher == "counts only" else Measured
    trigger: BrokerEventTrigger = made(**source.arguments(place), **WATCHERS[watcher])
    return trigger


async def through_the_machine(source: Source, place: Any, watcher: str, messages: int) -> Reading:
    """Read all that waits with a watcher of this kind."""
    producers: list[Any] = []
    trigger = trigger_of(source, place, watcher, producers)
    manager, key = SharedStreamManager(), trigger.shared_stream_key()
    carried = 0

    async def watch() -> None:
        nonlocal carried
        stream = manager.subscribe(trigger_id=1, trigger=trigger, key=key)
        try:
            async for event in trigger.filter_shared_stream(stream):
                found = event.payload["messages"]
                carried += found if isinstance(found, int) else len(found)
                stored_as = manager.bind_pending_event(trigger_id=1, key=key)
                if stored_as is not None:
                    manager.confirm_persisted([stored_as])
        finally:
            await manager.unsubscribe(1, key)

    watching = asyncio.create_task(watch())
    try:
        while not producers:
            await asyncio.sleep(LOOK_SECONDS)
        holdings = producers[0].holdings
        reading = await HoldingsProgress(messages, holdings).measured()
        assert set(holdings.sealed) == {Disposition.ACCEPT}, holdings.sealed
        assert carried >= (0 if watcher == "decodes and matches" else messages), f"{carried} of {messages} in events"
        return reading
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await manager.stop_all()


async def _alone(source: Source, place: Any, messages: int) -> Reading:
    progress = Progress(messages)
    measuring = asyncio.create_task(progress.measured())
    await source.alone(place, progress)
    return await measuring


Rounds = dict[str, list[Reading]]


async def compare(source: Source, rounds: int, messages: int) -> Rounds:
    """Print every reading, then a row of the table in ``docs/performance.md``; return the readings by watcher."""
    found: Rounds = {name: [] for name in ("alone", *WATCHERS)}
    print(f"{source.name}: {rounds} rounds of {messages:,} messages", flush=True)
    for _ in range(rounds):
        for name, readings in found.items():
            place = await source.fill(messages)
            gc.collect()
            if name == "alone":
                readings.append(await _alone(source, place, messages))
            else:
                readings.append(await through_the_machine(source, place, name, messages))
            rate, cpu, _ = readings[-1]
            ratio = rate / found["alone"][-1].rate
            print(f"{rate:9,.0f}/s  {ratio:5.2f}  {cpu:6.1f} us of the processor  {name}", flush=True)
    cells = []
    for readings in found.values():
        ratios = [ours.rate / theirs.rate for ours, theirs in zip(readings, found["alone"], strict=True)]
        costs = [one.cpu_microseconds for one in readings]
        part = "" if readings is found["alone"] else f", {spread(ratios, 2)}"
        cells.append(f"{spread(costs, 1 if max(costs) < 100 else 0)} µs{part}")
    print(f"| {source.name} | " + " | ".join(cells) + " |", flush=True)
    return found


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median, and the least and most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def options(description: str | None, messages: int) -> argparse.Namespace:
    """Read the command line, and make this process as quiet as it has to be."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=messages)
    # Lines about joins and leaves, a hundred of them.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.ERROR)
    os.environ["AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS"] = "0"
    return parser.parse_args()


def median_ratio(found: Rounds, watcher: str) -> float:
    """Return what part of the library's rate a watcher had, in the middle round."""
    pairs = zip(found[watcher], found["alone"], strict=True)
    return statistics.median(ours.rate / theirs.rate for ours, theirs in pairs)

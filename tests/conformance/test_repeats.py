"""A broker's repeats, where a watcher wants none of them."""

from __future__ import annotations

from typing import Any

from tests.airflow_loop import Triggerer, Watcher, repeated, triggerer, until
from tests.conformance.harness import Faults, FaultyConsumer, SourceTrigger, offer
from tests.conformance.suite import FILTERS, emptied, numbered
from tests.conformance.test_memory import MemorySource


def together(running: Triggerer, source: MemorySource, *watchers: dict[str, Any], faults: Faults) -> list[Watcher]:
    """Start watchers of one stream."""
    offer(source.name, lambda: FaultyConsumer(source.consumer(), faults), release_delay_seconds=0.1)
    return [running.start(SourceTrigger(source.name, **arguments)) for arguments in watchers]


async def test_a_failing_sibling_makes_no_second_event() -> None:
    """What one watcher fails on comes again to all of them."""
    source = MemorySource(ordered=False, dead_letters=True, lease_seconds=30.0)
    async with triggerer() as running:
        keen, plain, failing = together(
            running,
            source,
            {"dedupe_window_seconds": 60.0},
            {},
            {"apply_function": f"{FILTERS}.fail_first", "on_error": "release"},
            faults=Faults(),
        )
        await source.publish(numbered(50))
        await until(lambda: len(set(failing.ids)) == 50, "all of them")
        await until(emptied(source), "an empty source")
        assert len(repeated(plain.ids)) >= 5
        assert len(set(keen.ids)) == 50
        assert repeated(keen.ids) == []


async def test_a_repeat_whose_event_is_not_stored_yet() -> None:
    """The lease runs out while nothing can be stored: the repeat comes again, and isn't settled on the strength of an
    event that may never be stored.
    """
    source = MemorySource(ordered=False, dead_letters=True, lease_seconds=1.0)
    async with triggerer() as running:
        running.storing.clear()
        faults = Faults(renew=False)
        (watcher,) = together(running, source, {"dedupe_window_seconds": 60.0}, faults=faults)
        await source.publish(numbered(10))
        await until(lambda: all(stored.count >= 3 for stored in source.queue.messages.values()), "repeats")
        assert len(source.queue.messages) == 10
        assert watcher.ids == []
        faults.renew = True
        running.storing.set()
        await until(emptied(source), "an empty source")
        assert len(set(watcher.ids)) == 10
        assert repeated(watcher.ids) == []

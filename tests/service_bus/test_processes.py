"""Two triggerers on one queue, and triggerers that are killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.airflow_loop import LONG_SECONDS
from tests.service_bus.conftest import ServiceBus, trigger
from tests.triggerer_process import TriggererProcess, wait


def in_order(bodies: list[dict[str, int]]) -> bool:
    """Whether each session's messages are in their order."""
    sessions = {body["s"] for body in bodies}
    return all(numbers == sorted(numbers) for numbers in ([b["n"] for b in bodies if b["s"] == s] for s in sessions))


def fill(service_bus: ServiceBus, queue: str, *, sessions: bool) -> Counter[tuple[int, int]]:
    """Ten sessions, or none, with 40 messages each."""
    for session in range(10):
        bodies = [{"s": session, "n": n} for n in range(40)]
        service_bus.send(queue, bodies, session_id=str(session) if sessions else None)
    return Counter((session, n) for session in range(10) for n in range(40))


def counted(*triggerers: TriggererProcess) -> Counter[tuple[int, int]]:
    return Counter((body["s"], body["n"]) for one in triggerers for body in one.bodies)


@pytest.mark.parametrize("sessions", [False, True], ids=["plain", "sessions"])
def test_two_share_a_queue(service_bus: ServiceBus, tmp_path: Path, sessions: bool) -> None:
    queue = service_bus.queue(requires_session=sessions)
    arguments = {"session_enabled": sessions, "batch_size": 5, "max_in_flight": 40, "max_concurrent_sessions": 3}
    with (
        TriggererProcess(tmp_path / "one", trigger(queue, **arguments)) as one,
        TriggererProcess(tmp_path / "two", trigger(queue, **arguments)) as two,
    ):
        wait(lambda: service_bus.proxy.open >= 2, "two connections")
        sent = fill(service_bus, queue, sessions=sessions)
        wait(lambda: service_bus.server.pending(queue) == 0, "an empty queue")
        assert counted(one, two) == sent, "lost, or handed to both"
        assert one.bodies, "the second had everything"
        assert two.bodies, "the first had everything"
        if sessions:
            assert in_order(one.bodies)
            assert in_order(two.bodies)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sessions", "confirm"),
    [(False, True), (True, True), (False, False)],
    ids=["plain", "sessions", "stored only"],
)
def test_a_kill_loses_nothing(service_bus: ServiceBus, tmp_path: Path, sessions: bool, confirm: bool) -> None:
    queue = service_bus.queue(requires_session=sessions, lock_seconds=5)
    sent = fill(service_bus, queue, sessions=sessions)
    watcher = trigger(queue, session_enabled=sessions, batch_size=5)
    with TriggererProcess(tmp_path, watcher, confirm=confirm) as first:
        wait(lambda: len(first.bodies) >= 30, "thirty stored")
        first.kill()
    at_the_kill = counted(first)
    left = service_bus.server.pending(queue)
    if not confirm:
        assert left == sent.total(), "something was completed before it was confirmed"
    assert left > 0, "the kill came too late"
    with TriggererProcess(tmp_path, watcher) as second:
        # What the killed one had in hand comes when its locks run out.
        wait(lambda: service_bus.server.pending(queue) == 0, "an empty queue", 2 * LONG_SECONDS)
        found = counted(second)
    assert set(found) == set(sent)
    # However often: a slow machine loses locks of five seconds.
    assert len(found - at_the_kill) <= left, "something came again that had been completed"

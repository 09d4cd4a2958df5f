"""What the demo sends, and which Dag must get what of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from services.sqs_queue import SqsQueue

Body = Mapping[str, Any]

POISON: Body = {"kind": "order", "region": "eu", "total": "twelve and a half", "number": "poison"}
"""Refused by one watcher's function, and good for another's: it starts a run and is dead-lettered."""

NOBODYS: Body = {"kind": "newsletter", "region": "eu"}

WATCHERS = 8
"""Of all Dags below together."""


@dataclass
class Listener:
    """A Dag and what it must get.

    :param dag_id: the Dag's, and for those with one asset of their own the asset's too.
    :param wants: whether something sent is its own.
    :param every: whether each such message must reach a successful run; otherwise one run must succeed.
    """

    dag_id: str
    wants: Callable[[Body], bool]
    every: bool = True
    expected: set[str] = field(default_factory=set)
    """Ids of what was sent and is its own."""


@dataclass
class Source:
    """One queue or directory: what was sent to it, and who listens.

    :param name: shown in the table.
    :param assets: those whose watchers listen to it.
    """

    name: str
    assets: tuple[str, ...]
    listeners: tuple[Listener, ...]
    queue: SqsQueue | None = None
    sent: int = 0
    poisoned: set[str] = field(default_factory=set)
    """Ids of what must end in the dead-letter queue."""

    def note(self, sent: Iterable[tuple[str, Body]]) -> None:
        """Take down what was sent, by the id under which it will arrive."""
        for message_id, body in sent:
            self.sent += 1
            if body == POISON:
                self.poisoned.add(message_id)
            for listener in self.listeners:
                if listener.wants(body):
                    listener.expected.add(message_id)


def orders(queue: SqsQueue) -> Source:
    """Four watchers on one queue."""

    def is_large(body: Body) -> bool:
        total = body.get("total")
        return body.get("region") == "eu" and isinstance(total, (int, float)) and total > 1000

    listeners = (
        Listener("example_sqs_orders", lambda body: body["kind"] == "order"),
        Listener("example_sqs_refunds", lambda body: body["kind"] == "refund"),
        Listener("example_sqs_large_in_europe", is_large),
        Listener("example_sqs_checked_orders", lambda body: body["kind"] == "order" and body != POISON),
    )
    return Source(f"sqs {queue.name}", tuple(listener.dag_id for listener in listeners), listeners, queue)


def warehouse(queue: SqsQueue) -> Source:
    """Two watchers on a second queue, and five Dags that are scheduled on their assets, or on what those Dags make."""
    listeners = (
        Listener("example_scheduling_either", lambda body: True),
        Listener("example_scheduling_both", lambda body: True, every=False),
        Listener("example_scheduling_or_daily", lambda body: body["kind"] == "invoice"),
        Listener("example_scheduling_take_in", lambda body: body["kind"] == "delivery"),
        Listener("example_scheduling_downstream", lambda body: False, every=False),
    )
    assets = ("example_scheduling_deliveries", "example_scheduling_invoices")
    return Source(f"sqs {queue.name}", assets, listeners, queue)


def inbox() -> Source:
    """Two watchers on a directory."""
    listeners = (
        Listener("example_directory_tables", lambda body: str(body["name"]).endswith(".csv")),
        Listener("example_directory_end_of_day", lambda body: body["name"] == "end-of-day.json"),
    )
    return Source("directory inbox", tuple(listener.dag_id for listener in listeners), listeners)


def send(source: Source, bodies: list[Body]) -> None:
    """Send to the source's queue."""
    assert source.queue is not None
    ids = source.queue.send(json.dumps(body) for body in bodies)
    source.note(zip(ids, bodies, strict=True))


def drop(source: Source, folder: Path, names: list[str]) -> None:
    """Write files, which arrive under their names."""
    for name in names:
        (folder / name).write_text("item,number\nbolt,7\n" if name.endswith(".csv") else '{"closed": true}')
    source.note((name, {"name": name}) for name in names)


def order_burst() -> list[Body]:
    """Sixty messages: orders and refunds of three regions, one poison, one that is nobody's."""
    bodies: list[Body] = [
        {
            "kind": "refund" if number % 4 == 0 else "order",
            "region": ("eu", "us", "asia")[number % 3],
            "total": 25.5 * number,
            "number": number,
        }
        for number in range(58)
    ]
    return [*bodies[:20], POISON, *bodies[20:], NOBODYS]


def warehouse_burst() -> list[Body]:
    return [{"kind": kind, "item": item} for item in ("bolt", "nut", "gear") for kind in ("delivery", "invoice")]


ONE_MORE: Body = {"kind": "order", "region": "eu", "total": 4000, "number": "one more"}
"""To be sent by hand."""
FILES = ["monday.csv", "tuesday.csv", "wednesday.csv", "nobodys.txt", "thursday.csv", "end-of-day.json"]
NOBODYS_FILES = ["nobodys.txt"]

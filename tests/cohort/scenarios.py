"""What happens to an Airflow while messages flow. Each returns what became of the messages."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.cohort.deployment import PARSE_SECONDS, Deployment, Result
from tests.cohort.flow import Flow

GONE = """
from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger


class GoneTrigger(SqsSharedStreamTrigger):
    pass
"""

GONE_FROM_TRIGGERERS = f"""
import os

if os.environ["SHAREDSTREAM_COMPONENT"].startswith("triggerer"):
    raise ImportError("it is gone")
{GONE}"""


def _stem(name: str) -> str:
    """What names queues, files and Dags."""
    return re.sub(r"\W+", "_", name).strip("_")


def added(d: Deployment, name: str = "added", *, messages: int = 3000) -> Result:
    """Dags are added one after another, so that they land apart."""
    began = time.monotonic()
    stem = _stem(name)
    watchers = []
    with Flow(d.queue(stem), least=messages) as flow:
        for number in range(3):
            watcher = d.declare(f"{stem}_{number}", flow.queues[0])
            d.until_listed(watcher)
            watcher.listens(flow)
            watchers.append(watcher)
            d.until_seen(flow, watcher)
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began)


def torn_apart(d: Deployment, name: str = "torn apart", *, times: int = 10, messages: int = 3000) -> Result:
    """Ownership is torn apart by hand."""
    began = time.monotonic()
    stem = _stem(name)
    with Flow(d.queue(stem), least=messages) as flow:
        watchers = [d.declare(f"{stem}_{number}", flow.queues[0]) for number in range(3)]
        d.until_listed(*watchers)
        for watcher in watchers:
            watcher.listens(flow)
        d.until_seen(flow, *watchers)
        for _ in range(times):
            d.scatter(*watchers)
            time.sleep(5)
        d.until_seen(flow, *watchers)
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began)


def killed(d: Deployment, name: str = "killed", *, messages: int = 3000) -> Result:
    """Ownership is torn apart; the owner is killed; both are; the owner's runner is; PostgreSQL is restarted."""
    began = time.monotonic()
    stem = _stem(name)
    with Flow(d.queue(stem), least=messages, per_second=30) as flow:
        watchers = [d.declare(f"{stem}_{number}", flow.queues[0]) for number in range(3)]
        d.until_listed(*watchers)
        for watcher in watchers:
            watcher.listens(flow)
        d.until_seen(flow, *watchers)

        def owner() -> str:
            return d.host(d.triggers(watchers[0].name)[watchers[0].name][1])

        d.scatter(*watchers)
        time.sleep(5)
        first = owner()
        d.airflow.kill(first)
        d.until("another owner", lambda: owner() != first)
        d.until_seen(flow, *watchers)
        d.airflow.components[first].start()

        for triggerer in d.airflow.triggerers:
            d.airflow.kill(triggerer)
        for triggerer in d.airflow.triggerers:
            d.airflow.components[triggerer].start()
        d.until_seen(flow, *watchers)

        last = owner()
        d.airflow.kill_runner(last)
        d.until("the end of its supervisor", lambda: not d.airflow.components[last].running)
        d.airflow.components[last].start()
        d.until_seen(flow, *watchers)

        d.postgres.restart()
        d.until_seen(flow, *watchers)
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began)


def match_changed(d: Deployment, name: str = "match changed", *, times: int = 20, messages: int = 3000) -> Result:
    """One watcher's `match` changes in its file: its trigger is deleted, and a parse later made anew."""
    began = time.monotonic()
    stem = _stem(name)
    with Flow(d.queue(stem), least=messages, per_second=30) as flow:
        watchers = [d.declare(f"{stem}_{number}", flow.queues[0]) for number in range(3)]
        changing = watchers[0]
        d.until_listed(*watchers)
        for watcher in watchers:
            watcher.listens(flow)
        d.until_seen(flow, *watchers)
        for number in range(times):
            before = d.trigger(changing)
            d.declare(changing.name, flow.queues[0], match=f"body.n > `{-1 - number}`")
            d.until_replaced(changing, before)
        d.until_seen(flow, *watchers)
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began)


def shared_changed(d: Deployment, name: str = "shared changed", *, times: int = 10, messages: int = 3000) -> Result:
    """A shared argument changes for all: in turn all files at once, and one file a while before the others; then
    the streams are held, and the triggerers restarted.
    """
    began = time.monotonic()
    stem = _stem(name)
    with Flow(d.queue(stem), least=messages, per_second=30) as flow:
        queue = flow.queues[0]
        watchers = [d.declare(f"{stem}_{number}", queue) for number in range(3)]
        d.until_listed(*watchers)
        for watcher in watchers:
            watcher.listens(flow)
        d.until_seen(flow, *watchers)
        for number in range(times):
            before = {watcher.name: d.trigger(watcher) for watcher in watchers}
            changed: dict[str, Any] = {"wait_time_seconds": 20 - number}
            if number % 4 < 2:
                changed = {"batch_size": 99 - number}
            if number % 2:
                first = watchers[number % len(watchers)]
                d.declare(first.name, queue, **changed)
                d.until_replaced(first, before[first.name])
                for argument, value in changed.items():
                    held = f"is held, .* differ in .*{argument}: .*{value}"
                    d.until("word that they differ", lambda held=held: bool(d.log_lines(held)))
                d.restart_triggerers()
                d.until("a new word that they differ", lambda held=held: len(d.log_lines(held)) > 1)
            for watcher in watchers:
                d.declare(watcher.name, queue, **changed)
            for watcher in watchers:
                d.until_replaced(watcher, before[watcher.name])
            d.until_seen(flow, *watchers)
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began)


def come_and_go(d: Deployment, name: str = "come and go", *, messages: int = 3000) -> Result:
    """A watcher is added; a Dag is paused and unpaused; a Dag file is deleted; one gets a syntax error."""
    began = time.monotonic()
    stem = _stem(name)
    with Flow(d.queue(stem), least=messages, per_second=30) as flow:
        queue = flow.queues[0]
        steady, pausing = (d.declare(f"{stem}_{number}", queue) for number in range(2))
        d.until_listed(steady, pausing)
        steady.listens(flow)
        pausing.listens(flow)
        d.until_seen(flow, steady, pausing)

        added = d.declare(f"{stem}_2", queue)
        d.until_listed(added)
        added.listens(flow)
        d.until_seen(flow, added)

        pausing.ends(flow, d.until_caught_up(flow, pausing))
        d.airflow.client.pause(pausing.name)
        d.until("no trigger of the paused Dag", lambda: not d.triggers(pausing.name))
        d.until_seen(flow, steady, added)
        d.airflow.client.pause(pausing.name, False)
        d.until_listed(pausing)
        pausing.listens(flow)
        d.until_seen(flow, pausing)

        added.ends(flow, d.until_caught_up(flow, added))
        d.remove_file(added.name)
        d.until("no trigger of the deleted Dag", lambda: not d.triggers(added.name))
        d.until_seen(flow, steady, pausing)

        # Once a file was deleted, Airflow takes the triggers of a broken one away too.
        text = d.break_file(steady.name)
        time.sleep(4 * PARSE_SECONDS)
        d.mend_file(steady.name, text)
        d.until_seen(flow, steady, pausing)
    return d.account(name, flow, steady, pausing, added, seconds=time.monotonic() - began)


def cannot_start(d: Deployment, name: str = "cannot start", *, messages: int = 3000) -> Result:
    """One watcher can't start, since its class is gone: the others go on after the timeout."""
    began = time.monotonic()
    stem = _stem(name)
    d.define("gone_triggers", GONE)
    with Flow(d.queue(stem), least=messages, per_second=30) as flow:
        queue = flow.queues[0]
        watchers = [d.declare(f"{stem}_{number}", queue) for number in range(2)]
        broken = d.declare(f"{stem}_2", queue, module="gone_triggers", trigger="GoneTrigger")
        d.until_listed(*watchers, broken)
        for watcher in (*watchers, broken):
            watcher.listens(flow)
        d.until_seen(flow, *watchers, broken)
        broken.ends(flow, d.until_caught_up(flow, broken))
        # Of a file that the Dag processor can't import Airflow may take the triggers away.
        d.define("gone_triggers", GONE_FROM_TRIGGERERS)
        d.restart_triggerers()
        d.until_seen(flow, *watchers)
        d.remove_file(broken.name)
    return d.account(name, flow, *watchers, broken, seconds=time.monotonic() - began)


def spread(
    d: Deployment, name: str = "spread", *, streams: int = 12, messages: int = 3000
) -> tuple[Result, list[list[int]]]:
    """Streams on all triggerers, one of which is killed. Also returns how many each had, before and after."""
    began = time.monotonic()
    queues = {f"{name}_{number}": d.queue(f"{name}-{number}") for number in range(streams)}
    triggerers = d.airflow.triggerers
    counts = []

    def count() -> list[int]:
        owners = [d.host(job) for _, job in d.triggers(*queues).values() if job is not None]
        return sorted(owners.count(triggerer) for triggerer in triggerers)

    def until_even(among: int) -> None:
        even = [0] * (len(triggerers) - among) + [streams // among] * among
        d.until(f"{even} streams", lambda: count() == even)
        counts.append(count())

    with Flow(*queues.values(), least=messages, per_second=30) as flow:
        watchers = d.declare_all(name, queues)
        d.until_listed(*watchers)
        for watcher in watchers:
            watcher.listens(flow)
        until_even(len(triggerers))
        d.until_seen(flow, *watchers)
        d.airflow.kill(triggerers[0])
        until_even(len(triggerers) - 1)
        d.until_seen(flow, *watchers)
        d.airflow.components[triggerers[0]].start()
    return d.account(name, flow, *watchers, seconds=time.monotonic() - began), counts

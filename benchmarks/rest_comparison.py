"""What `RestPollTrigger` and the official `HttpEventTrigger` do with the same server, in a whole Airflow each.

Run it in an environment that has both this package and `apache-airflow-providers-http` (which is in no constraints
file here, since nothing else needs it)::

    python -m venv /tmp/comparison
    /tmp/comparison/bin/pip install -c constraints.txt apache-airflow-core apache-airflow-providers-standard \
        apache-airflow-providers-http httpx h11 psutil -e .
    /tmp/comparison/bin/python -m benchmarks.rest_comparison [seconds]

It prints a Markdown table, a row for what the server does, with what came of it in so many seconds (default: 60).
"""

from __future__ import annotations

import json
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from services.airflow import Airflow, AssetEvent
from services.rest import Request, Response, RestServer, in_turn
from services.rest_list import RestList

INTERVAL_SECONDS = 5
WATCHERS = 10
JSON = {"Content-Type": "application/json"}

CHECKS = '''
"""The checks that HttpEventTrigger needs: they fire where the answer is JSON with items."""


async def has_items(response):
    return bool(response.json()["items"])


# With equal arguments, two triggers of one Dag file would be the same.
for number in range({watchers}):
    globals()[f"has_items_{{number}}"] = has_items
'''

OFFICIAL = '''
from airflow.providers.http.triggers.http import HttpEventTrigger


def trigger(path, number):
    check = f"comparison_checks.has_items_{{number}}"
    return HttpEventTrigger(check, http_conn_id="compared", endpoint=path, poll_interval={interval})
'''

OURS = '''
from airflow_provider_sharedstream.triggers.rest import RestPollTrigger


def trigger(path, number):
    match = f"body.id != `-{{number + 1}}`"
    return RestPollTrigger(path, "compared", items_path="items", id_path="id", poll_interval={interval}, match=match)
'''

DAGS = '''
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset, AssetWatcher

for name, path, watchers in {cases!r}:
    for number in range(watchers):
        asset = Asset(f"{{name}}-{{number}}", watchers=[AssetWatcher(name="w", trigger=trigger(path, number))])
        with DAG(f"{{name}}-{{number}}", schedule=asset, max_active_runs=1):
            EmptyOperator(task_id="done")
'''


class Case(NamedTuple):
    """What a server does, and how many watchers look at it."""

    title: str
    serve: Callable[[RestServer, str], object]
    watchers: int = 1


def _items(count: int) -> bytes:
    return json.dumps({"items": [{"id": number} for number in range(count)]}).encode()


def _pages(server: RestServer, path: str) -> None:
    RestList(server, path, pages="link", page_size=100).publish(*({"id": number} for number in range(250)))


def _growing(server: RestServer, path: str) -> None:
    began = time.monotonic()

    def answer(_: Request) -> Response:
        return Response(_items(10 + int((time.monotonic() - began) / 2)), headers=JSON)

    server.serve(path, answer)


GOOD = Response(_items(3), headers=JSON)
CASES: dict[str, Case] = {
    "constant": Case("the same three items every time", lambda server, path: server.serve(path, GOOD)),
    "growing": Case("a new item every two seconds", _growing),
    "pages": Case("250 items over three pages", _pages),
    "etag": Case(
        "answers 304 to `If-None-Match`", lambda server, path: RestList(server, path, etags=True).publish({"id": 1})
    ),
    "many": Case(f"three items, {WATCHERS} watchers", lambda server, path: server.serve(path, GOOD), WATCHERS),
    "throttled": Case(
        "429 with `Retry-After: 7` every second time",
        lambda server, path: server.serve(
            path, in_turn(*[Response(status=429, headers={"Retry-After": "7"}), GOOD] * 500)
        ),
    ),
    "trouble": Case(
        "500 three times, then items",
        lambda server, path: server.serve(path, in_turn(*[Response(status=500)] * 3, GOOD)),
    ),
    "missing": Case("404", lambda server, path: None),
    "invalid": Case(
        "invalid JSON", lambda server, path: server.serve(path, Response(b'{"items": [', headers=JSON))
    ),
    "loop": Case(
        "a redirect loop", lambda server, path: server.serve(path, Response(status=302, headers={"Location": path}))
    ),
    "drip": Case(
        "a byte every two seconds", lambda server, path: server.serve(path, Response(GOOD.body, drip_seconds=2.0))
    ),
}
HUGE: dict[str, Case] = {
    "huge": Case(
        "a body of 20 MB",
        lambda server, path: server.serve(path, Response(b'{"items": ["' + b"x" * 20_000_000 + b'"]}', headers=JSON)),
    ),
    "beside": Case("a new item every two seconds, beside a body of 20 MB", _growing),
}
"""Apart from the others, on which it might have an effect."""


class Seen(NamedTuple):
    """What came of one case."""

    requests: int
    events: list[AssetEvent]

    @property
    def text(self) -> str:
        largest = max((len(json.dumps(event.extra)) for event in self.events), default=0)
        texts = [_counted(self.requests, "request"), _counted(len(self.events), "event")]
        return ", ".join(texts + ([f"the largest {largest:,} bytes"] if largest > 10_000 else []))


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def run(make: str, named: Mapping[str, Case], root: Path, seconds: float) -> dict[str, Seen]:
    """Watch cases with one kind of trigger, for so many seconds after the first request for each."""
    with RestServer() as server:
        return _run(make, named, server, root, seconds)


def _run(make: str, named: Mapping[str, Case], server: RestServer, root: Path, seconds: float) -> dict[str, Seen]:
    for name, case in named.items():
        case.serve(server, f"/{name}")
    dags = root / "dags"
    dags.mkdir(parents=True)
    cases = [(name, name, case.watchers) for name, case in named.items()]
    (dags / "compared.py").write_text(
        textwrap.dedent(make).format(interval=INTERVAL_SECONDS) + textwrap.dedent(DAGS).format(cases=cases)
    )
    (root / "modules").mkdir()
    (root / "modules" / "comparison_checks.py").write_text(CHECKS.format(watchers=WATCHERS))
    with Airflow(
        root / "airflow",
        dags,
        connections={"compared": json.dumps({"conn_type": "http", "host": server.url})},
        env={"PYTHONPATH": str(root / "modules")},
    ) as airflow:
        airflow.wait_for("the first request for each", lambda: all(server.count(f"/{name}") for name in named))
        time.sleep(seconds)
        counts = {name: server.count(f"/{name}") for name in named}
        events = airflow.asset_events()
        if airflow.components[airflow.triggerers[0]].ended_by_itself:
            print("the triggerer has ended:", airflow.tail(airflow.triggerers[0]), file=sys.stderr)
    return {name: Seen(counts[name], [one for one in events if one.asset.startswith(f"{name}-")]) for name in named}


def main(seconds: float) -> None:
    seen: dict[str, dict[str, Seen]] = {}
    for kind, make in {"official": OFFICIAL, "ours": OURS}.items():
        with tempfile.TemporaryDirectory(prefix="rest-comparison-") as root:
            seen[kind] = run(make, CASES, Path(root) / "cases", seconds) | run(make, HUGE, Path(root) / "huge", seconds)
    print(
        f"In {seconds:g} s, asking every {INTERVAL_SECONDS} s; Airflow {version('apache-airflow-core')}, "
        f"apache-airflow-providers-http {version('apache-airflow-providers-http')}.\n"
    )
    print("| the server | `HttpEventTrigger` | `RestPollTrigger` |\n|---|---|---|")
    for name, case in {**CASES, **HUGE}.items():
        print(f"| {case.title} | {seen['official'][name].text} | {seen['ours'][name].text} |")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 60.0)

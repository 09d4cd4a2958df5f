"""What decoding and matching cost, in microseconds a message, against `json.loads` and one comparison.

``python -m benchmarks.decode_match`` prints one line a case. Times are of the processor, of one process; each is the
best of several, so that what else runs on the machine matters little.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.payload import event_payload
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.receipts import Receipt

MESSAGES = 5_000
BATCH = 100
REPEATS = 5
REGIONS = ["eu", "us", "ap", "sa"]

SMALL = {"order": 7, "region": "eu", "amount": 120.5}
MIDDLE = {
    "order": "A-1047",
    "region": "eu",
    "amount": 120.5,
    "customer": {"id": 12, "name": "Zoë", "tags": ["new", "b2b"]},
    "items": [{"sku": f"sku-{n}", "quantity": n, "price": 9.99} for n in range(10)],
}
SIZES = {"small": SMALL, "middle": MIDDLE}


def bodies(template: dict[str, Any]) -> list[bytes]:
    return [json.dumps({**template, "region": REGIONS[n % 4], "order": n}).encode() for n in range(MESSAGES)]


def best(run: Callable[[], None]) -> float:
    """Return microseconds a message."""
    times = []
    for _ in range(REPEATS):
        started = time.process_time()
        run()
        times.append(time.process_time() - started)
    return min(times) / MESSAGES * 1e6


def plain(raw: list[bytes]) -> Callable[[], None]:
    def run() -> None:
        found = [body for body in map(json.loads, raw) if body["region"] == "eu"]
        assert len(found) == MESSAGES / 4

    return run


def watched(
    raw: list[bytes], watchers: int, expressions: list[Any], headers: dict[str, Any], events: bool
) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(look())

    async def look() -> None:
        pipelines = [MessagePipeline(Decoder(), Matcher(expressions[n % len(expressions)])) for n in range(watchers)]
        found = 0
        for start in range(0, MESSAGES, BATCH):
            batch = [
                Delivery(id=str(start + n), body=body, headers=headers)
                for n, body in enumerate(raw[start : start + BATCH])
            ]
            receipts = Batch(batch)
            for number, pipeline in enumerate(pipelines):
                messages = await pipeline.messages_for(batch, Receipt(receipts, str(number)))
                found += len(messages)
                if events and messages:
                    event_payload("sqs", "orders", messages)
        assert found == MESSAGES * watchers / (1 if expressions == [None] else 4)

    return run


def main() -> None:
    same = "body.region == 'eu'"
    regions = [f"body.region == '{region}'" for region in REGIONS]
    shorthand = [{"body.region": region} for region in REGIONS]
    print(f"microseconds of the processor a message, {MESSAGES} messages in batches of {BATCH}, best of {REPEATS}")
    for size, template in SIZES.items():
        raw = bodies(template)
        print(f"\n{size}: {len(raw[0])} bytes")
        base = best(plain(raw))
        print(f"  {base:8.2f}  json.loads and one comparison")
        for name, watchers, expressions, headers, events in (
            ("1 watcher, every message", 1, [None], {}, False),
            ("1 watcher, one comparison", 1, [same], {}, False),
            ("1 watcher, one comparison, and the payload", 1, [same], {}, True),
            ("1 watcher, three headers", 1, [same], {"content-type": "application/json", "a": "b", "c": "d"}, False),
            ("1 watcher, a function", 1, ["contains(body.region, 'eu') && length(body.region) > `1`"], {}, False),
            ("20 watchers, 4 expressions", 20, regions, {}, False),
            ("20 watchers, 4 dicts", 20, shorthand, {}, False),
            ("20 watchers, 4 expressions, and the payloads", 20, regions, {}, True),
        ):
            cost = best(watched(raw, watchers, expressions, headers, events))
            print(f"  {cost:8.2f}  {name} ({cost / watchers / base:.1f} times json.loads, each watcher)")


if __name__ == "__main__":
    main()

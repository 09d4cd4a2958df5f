"""Watchers come and go, the network and the state store too: no asset misses an item."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from typing import Any

import pytest

from services.rest import RestServer
from services.rest_list import Pages, RestList
from tests.airflow_loop import Watcher, triggerer, until
from tests.rest.conftest import Supervisor, watch

WAYS: dict[Pages, dict[str, Any]] = {
    "link": {"items_path": "items", "id_path": "id"},
    "cursor": {
        "items_path": "items",
        "id_path": "id",
        "cursor_path": "next_cursor",
        "cursor_param": "since",
        "next_page": "cursor",
    },
}
ASSETS = [("a",), ("b", "c"), ("d",)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("pages", WAYS)
async def test_no_asset_misses_an_item(path: str, supervisor: Supervisor, pages: Pages, seed: int) -> None:
    chance = random.Random(f"{pages} {seed}")
    numbers = itertools.count()
    supervisor.seconds = 0.005
    everybody: list[tuple[tuple[str, ...], Watcher]] = []
    running_now: dict[tuple[str, ...], Watcher] = {}
    with RestServer() as server:
        items = RestList(server, path, pages=pages, page_size=7, etags=True)
        async with triggerer(store_seconds=0.002, confirm_seconds=0.3) as running:

            async def begin(assets: tuple[str, ...]) -> None:
                if assets not in running_now:
                    running_now[assets] = watch(running, items.url, *assets, batch_size=5, **WAYS[pages])
                    everybody.append((assets, running_now[assets]))

            async def end(assets: tuple[str, ...]) -> None:
                if assets in running_now:
                    await running.cancel(running_now.pop(assets))

            async def begin_one() -> None:
                await begin(chance.choice(ASSETS))

            async def end_one() -> None:
                await end(chance.choice(ASSETS))

            async def flicker() -> None:
                await asyncio.to_thread(server.cut)
                await asyncio.sleep(chance.random() / 2)
                await asyncio.to_thread(server.heal)

            async def forget() -> None:
                supervisor.away = True
                await asyncio.sleep(chance.random() / 2)
                supervisor.away = False

            for step in range(60):
                items.publish(*({"id": next(numbers)} for _ in range(chance.randrange(12))))
                some = [begin_one, begin_one, begin_one, end_one, flicker, forget]
                action = chance.choice(some if step % 3 else [begin_one, end_one])
                await action()
                await asyncio.sleep(chance.random() / 4)
            for assets in ASSETS:
                await begin(assets)
            items.publish(*({"id": next(numbers)} for _ in range(10)))
            expected = set(range(next(numbers)))

            def had(asset: str) -> Counter[int]:
                return Counter(
                    body["id"] for assets, watcher in everybody if asset in assets for body in watcher.bodies
                )

            for asset in "abcd":
                await until(lambda one=asset: set(had(one)) == expected, f"everything at {asset}", 120)
            assert not any(watcher.restarts for _, watcher in everybody)
            await asyncio.sleep(2)
            before = sum(had(asset).total() for asset in "abcd")
            await asyncio.sleep(3)
            assert sum(had(asset).total() for asset in "abcd") == before, "it goes on, although nothing is new"
            print({asset: had(asset).total() - len(expected) for asset in "abcd"}, "came again, of", len(expected))

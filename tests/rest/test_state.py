"""Up to where each asset has read: who comes later, who was away, and what is stored."""

from __future__ import annotations

import asyncio

import pytest

from services.rest import RestServer
from services.rest_list import Pages, RestList
from tests.airflow_loop import triggerer, until
from tests.rest.conftest import ITEMS, Supervisor, numbered, numbers, watch


@pytest.mark.parametrize("pages", ["link", "cursor"])
async def test_who_catches_up_keeps_nobody_waiting(
    server: RestServer, path: str, supervisor: Supervisor, pages: Pages
) -> None:
    items = RestList(server, path, pages=pages, page_size=5)
    items.publish(*numbered(100))
    arguments = dict(ITEMS)
    if pages == "cursor":
        arguments |= {"cursor_path": "next_cursor", "cursor_param": "since", "next_page": "cursor"}
    async with triggerer(confirm_seconds=0.3) as running:
        first = watch(running, items.url, "first", batch_size=5, **arguments)
        await until(lambda: len(first.ids) == 100, "100 at the first")
        later = watch(running, items.url, "later", batch_size=5, **arguments)
        await until(lambda: len(later.ids) >= 10, "some at the one that came later")
        items.publish({"id": 100})
        await until(lambda: len(first.ids) == 101, "the new one at the first")
        assert len(later.ids) < 90, "it had to wait until the other had caught up"
        await until(lambda: len(later.ids) == 101, "all at the one that came later")
        assert numbers(first.bodies) == numbers(later.bodies) == list(range(101))


async def test_one_that_comes_later_and_one_that_was_away(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    items = RestList(server, path, pages="link", page_size=10)
    items.publish(*numbered(30))
    async with triggerer() as running:
        first = watch(running, items.url, "first", **ITEMS)
        await until(lambda: len(first.ids) == 30, "30 at the first")
        later = watch(running, items.url, "later", **ITEMS)
        only_new = watch(running, items.url, "only new", first_poll="new", **ITEMS)
        await until(lambda: len(later.ids) == 30, "30 at the one that came later")
        await running.cancel(later)
        items.publish(*numbered(10, 30))
        await until(lambda: len(first.ids) == 40, "40 at the first")
        await until(lambda: len(only_new.ids) == 10, "10 at the one that wanted new ones alone")
        back = watch(running, items.url, "later", **ITEMS)
        await until(lambda: len(back.ids) == 10, "what came while it was away")
        await asyncio.sleep(1.5)
        assert numbers(first.bodies) == list(range(40))
        assert numbers(later.bodies) == list(range(30))
        assert numbers(back.bodies) == list(range(30, 40)) == numbers(only_new.bodies)
        before = server.count(path)
        await asyncio.sleep(2)
        assert server.count(path) - before <= 4 * 13, "they are asked for together again"


async def test_later_ones_with_a_cursor(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path, pages="cursor", page_size=10)
    items.publish(*numbered(30))
    arguments = {**ITEMS, "cursor_path": "next_cursor", "cursor_param": "since", "next_page": "cursor"}
    async with triggerer() as running:
        first = watch(running, items.url, "first", **arguments)
        await until(lambda: len(first.ids) == 30, "30 at the first")
        later = watch(running, items.url, "later", **arguments)
        only_new = watch(running, items.url, "only new", first_poll="new", **arguments)
        await until(lambda: len(later.ids) == 30, "30 at the one that came later")
        await asyncio.sleep(1)
        items.publish(*numbered(10, 30))
        await until(lambda: len(only_new.ids) == 10, "10 at the one that wanted new ones alone")
        await until(lambda: len(first.ids) == 40, "40 at the first")
        await until(lambda: len(later.ids) == 40, "40 at the one that came later")
        await asyncio.sleep(1.5)
        assert numbers(first.bodies) == list(range(40)) == numbers(later.bodies)
        assert numbers(only_new.bodies) == list(range(30, 40))
        asked = len(server.requests)
        await asyncio.sleep(2)
        recent = [request for request in server.requests[asked:] if request.path == path]
        assert len(recent) <= 13, "they are asked for together again"
        assert {request.param("since") for request in recent} == {"40"}


async def test_one_trigger_of_two_assets(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path)
    items.publish(*numbered(10))
    async with triggerer() as running:
        both = watch(running, items.url, "b", "a", **ITEMS)
        await until(lambda: len(both.ids) == 10, "ten items")
    async with triggerer() as running:
        again = watch(running, items.url, "a", "b", **ITEMS)
        one = watch(running, items.url, "b", match="body.id > `100`", **ITEMS)
        items.publish(*numbered(5, 10))
        await until(lambda: len(again.ids) == 5, "what came meanwhile")
    async with triggerer() as running:
        # An asset is added, by name before the others: the trigger goes on where it stands.
        more = watch(running, items.url, "a", "b", "0 added", **ITEMS)
        items.publish(*numbered(5, 15))
        await until(lambda: len(more.ids) == 5, "what came meanwhile")
        await asyncio.sleep(1)
        assert numbers(more.bodies) == list(range(15, 20))
    assert numbers(again.bodies) == list(range(10, 15))
    assert not one.bodies


async def test_two_watchers_of_one_asset(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path)
    items.publish(*numbered(10))
    async with triggerer() as running:
        small = watch(running, items.url, "asset", match="body.id < `5`", **ITEMS)
        large = watch(running, items.url, "asset", match="body.id >= `5`", **ITEMS)
        await until(lambda: len(small.ids) == len(large.ids) == 5, "five at each")
        await running.cancel(small)
        items.publish({"id": 3.5}, {"id": 11})
        await until(lambda: len(large.ids) == 6, "one more")
        await asyncio.sleep(1)
        assert numbers(large.bodies) == [5, 6, 7, 8, 9, 11]
    async with triggerer() as running:
        again = [watch(running, items.url, "asset", match=f"body.id {than} `5`", **ITEMS) for than in ("<", ">=")]
        asked = server.count(path)
        await until(lambda: server.count(path) > asked + 3, "three polls")
        # An asset has one position, and one of its watchers has looked at what came meanwhile.
        assert not any(watcher.events for watcher in again)


async def test_a_trigger_s_second_asset_goes_along(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path, pages="cursor", page_size=10)
    items.publish(*numbered(30))
    arguments = {**ITEMS, "cursor_path": "next_cursor", "cursor_param": "since", "next_page": "cursor"}
    async with triggerer() as running:
        both = watch(running, items.url, "a", "b", **arguments)
        await until(lambda: len(both.ids) == 30, "30 items")

        def stored() -> list[int]:
            heads = [value for asset in ("a", "b") for value in supervisor.values[asset].values()]
            return [head["cursor"] for head in heads if head["begun"]]

        await until(lambda: stored() == [30, 30], "both cursors")
    async with triggerer() as running:
        asked = len(server.requests)
        second = watch(running, items.url, "b", **arguments)
        items.publish(*numbered(5, 30))
        await until(lambda: len(second.ids) == 5, "what came meanwhile")
        assert next(r.param("since") for r in server.requests[asked:] if r.path == path) == "30"


async def test_positions_outlive_a_triggerer_in_the_middle(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    items = RestList(server, path, pages="link", page_size=10)
    items.publish(*numbered(200))
    had: list[int] = []
    for _ in range(3):
        async with triggerer(confirm_seconds=0.1) as running:
            watcher = watch(running, items.url, "asset", **ITEMS)
            await until(lambda w=watcher: len(w.ids) >= 30, "some pages")
            # It goes without a word.
            assert watcher.task is not None
            had += numbers(watcher.bodies)
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", **ITEMS)
        await until(lambda: {*had, *numbers(watcher.bodies)} == set(range(200)), "all items")
        had += numbers(watcher.bodies)
    assert len(had) - 200 <= 3 * 10, "more than a page came twice each time"


async def test_the_state_store_is_away_for_a_while(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(10))
    supervisor.away = True
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", **ITEMS)
        await until(lambda: "the state store of asset 'asset' can't be reached" in caplog.text, "a line about it")
        assert not watcher.events, "it began without knowing what it has had"
        supervisor.away = False
        await until(lambda: len(watcher.ids) == 10, "ten items")
        supervisor.away = True
        items.publish(*numbered(10, 10))
        await until(lambda: len(watcher.ids) == 20, "twenty items")
        await asyncio.sleep(1)
        supervisor.away = False
        await until(lambda: _known(supervisor, "asset") == 20, "twenty known ids in the store", 30)
        assert numbers(watcher.bodies) == list(range(20))


async def test_an_asset_that_has_gone_holds_up_nobody(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(10))
    async with triggerer() as running:
        leaving = watch(running, items.url, "leaving", **ITEMS)
        staying = watch(running, items.url, "staying", **ITEMS)
        await until(lambda: len(leaving.ids) == len(staying.ids) == 10, "ten at each")
        supervisor.gone.add("leaving")
        supervisor.gone.add("never there")
        never_there = watch(running, items.url, "never there", **ITEMS)
        items.publish(*numbered(10, 10))
        await until(lambda: len(staying.ids) == 20, "twenty")
        await until(lambda: _known(supervisor, "staying") == 20, "twenty known ids in the store")
        assert not never_there.events, "it would be given the same again after a restart"
    assert "asset 'leaving' is not declared by any Dag" in caplog.text
    assert f"A watcher of 127.0.0.1:{server.port}{path} can't begin" in caplog.text


@pytest.mark.slow
async def test_a_thousand_known_ids_are_stored_in_small_values(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(4500))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", max_known_ids=5000, batch_size=1000, **ITEMS)
        await until(lambda: len(watcher.ids) == 4500, "all")
        await until(lambda: _known(supervisor, "asset") == 4500, "4,500 known ids in the store")
    assert supervisor.largest < 20_000
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", max_known_ids=5000, batch_size=1000, **ITEMS)
        # It moves on: the oldest are no longer listed.
        for start in range(4500, 20_000, 1500):
            items.items = items.items[1500:]
            items.publish(*numbered(1500, start))
            await until(lambda end=start + 1500: len(watcher.ids) == end - 4500, f"what comes after {start}")
        assert numbers(watcher.bodies) == list(range(4500, 21_000))
        # Six segments, as many again that replace them, one that is being closed, and the head.
        assert len(supervisor.values["asset"]) <= 14, "the store grows"
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", max_known_ids=5000, batch_size=1000, **ITEMS)
        asked = server.count(path)
        await until(lambda: server.count(path) > asked + 3, "three polls")
        assert not watcher.events


async def test_more_items_than_can_be_known_are_not_emitted_for_ever(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path, pages="link", page_size=60)
    items.publish(*numbered(130))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", max_known_ids=100, **ITEMS)
        await until(lambda: "lists more than max_known_ids=100 items" in caplog.text, "a line that says so")
        await asyncio.sleep(1)
        assert len(set(watcher.ids)) == len(watcher.ids)


def _known(supervisor: Supervisor, asset: str) -> int:
    values = supervisor.values[asset]
    head = next(value for value in values.values() if isinstance(value, dict))
    key = next(key for key, value in values.items() if value is head)
    return (len(head["known"]) + sum(len(values[f"{key}.{slot}"]) for slot in head["slots"])) // 12

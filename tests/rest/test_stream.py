"""The promises of `RestPollTrigger`, on a real server under watchers on Airflow's real `SharedStreamManager`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.rest import Response, RestServer, in_turn
from services.rest_list import Pages, RestList
from tests.airflow_loop import triggerer, until
from tests.rest.conftest import Supervisor, watch

ITEMS: dict[str, Any] = {"items_path": "items", "id_path": "id"}


def numbered(count: int, start: int = 0) -> list[dict[str, int]]:
    return [{"id": number} for number in range(start, start + count)]


def numbers(bodies: list[Any]) -> list[int]:
    return [body["id"] for body in bodies]


@pytest.mark.slow
async def test_fifty_watchers_are_one_request_an_interval(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(100))
    async with triggerer() as running:
        watchers = [
            watch(running, items.url, f"asset-{n}", poll_interval=1.0, match=f"body.id == `{n}`", **ITEMS)
            for n in range(50)
        ]
        await until(lambda: all(len(w.ids) == 1 for w in watchers), "each watcher's own item")
        before = server.count(path)
        await asyncio.sleep(10)
        asked = server.count(path) - before
        assert 9 <= asked <= 12, "one request an interval, which varies by a tenth"
        for number, watcher in enumerate(watchers):
            assert numbers(watcher.bodies) == [number]
            assert watcher.restarts == 0
        assert before <= 5, "more than one request before the watchers had what is theirs"


@pytest.mark.slow
async def test_a_body_that_never_changes_is_one_event(server: RestServer, path: str, supervisor: Supervisor) -> None:
    url = server.serve(path, Response(b'{"state": "on", "since": 7}', headers={"Content-Type": "application/json"}))
    async with triggerer() as running:
        watcher = watch(running, url, "asset", poll_interval=0.1)
        await until(lambda: server.count(path) > 101, "a hundred polls")
        assert len(watcher.events) == 1
        assert watcher.bodies == [{"state": "on", "since": 7}]
        writes = supervisor.writes
        await until(lambda: server.count(path) > 120, "more polls")
        assert supervisor.writes == writes, "nothing has changed, and yet something was stored"


async def test_a_body_fires_on_each_change_and_when_it_comes_back(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    state = {"body": b'{"state": "off", "n": 1}'}
    url = server.serve(path, lambda _: Response(state["body"]))
    async with triggerer() as running:
        watcher = watch(running, url, "asset")
        expected = [{"state": "off", "n": 1}]
        await until(lambda: watcher.bodies == expected, "the first")
        state["body"] = b'{"n": 1, "state":\n "off"}'
        await asyncio.sleep(1)
        assert watcher.bodies == expected, "the same in another order is no change"
        for state_now in ("on", "off", "on", "off"):
            state["body"] = json.dumps({"state": state_now, "n": 1}).encode()
            expected.append({"state": state_now, "n": 1})
            await until(lambda: watcher.bodies == expected, f"the change to {state_now}")
        assert len(set(watcher.ids)) == 5, "what came back would be taken for a repeat"


async def test_not_modified_is_silence(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path, etags=True, pages="link", page_size=10)
    items.publish(*numbered(35))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", **ITEMS)
        await until(lambda: len(watcher.ids) == 35, "35 items")
        before = items.not_modified
        await until(lambda: items.not_modified >= before + 12, "304 for every page of three polls")
        items.publish(*numbered(5, 35))
        await until(lambda: len(watcher.ids) == 40, "what was added on the last page")
        assert numbers(watcher.bodies) == list(range(40))


@pytest.mark.parametrize(
    ("pages", "next_page"),
    [
        ("link", None),
        ("url", {"url": "next"}),
        ("token", {"token": "next_token", "param": "token"}),
        ("page", {"page": "page"}),
        ("offset", {"offset": "offset", "size": 10}),
    ],
)
async def test_pages(
    server: RestServer, path: str, supervisor: Supervisor, pages: Pages, next_page: dict[str, Any] | None
) -> None:
    items = RestList(server, path, pages=pages, page_size=10)
    items.publish(*numbered(95))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", next_page=next_page, **ITEMS)
        await until(lambda: len(watcher.ids) >= 95, "95 items")
        items.publish(*numbered(20, 95))
        await until(lambda: len(watcher.ids) >= 115, "115 items")
        await asyncio.sleep(1)
        assert numbers(watcher.bodies) == list(range(115))


async def test_more_pages_than_allowed_are_read_on_with_the_next_poll(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path, pages="link", page_size=10)
    items.publish(*numbered(95))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", max_pages=3, **ITEMS)
        await until(lambda: len(watcher.ids) >= 95, "95 items")
        assert numbers(watcher.bodies) == list(range(95))
    assert "max_pages" in caplog.text


async def test_a_cursor_asks_only_for_what_is_new(server: RestServer, path: str, supervisor: Supervisor) -> None:
    items = RestList(server, path, pages="cursor", page_size=10)
    items.publish(*numbered(35))
    arguments = {**ITEMS, "cursor_path": "next_cursor", "cursor_param": "since", "next_page": "cursor"}
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", **arguments)
        await until(lambda: len(watcher.ids) == 35, "35 items")
        await until(lambda: next(iter(supervisor.values["asset"].values()))["cursor"] == 35, "a stored cursor")
    asked = len(server.requests)
    items.publish(*numbered(5, 35))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", **arguments)
        await until(lambda: len(watcher.ids) == 5, "what came meanwhile")
        assert numbers(watcher.bodies) == list(range(35, 40))
    since = [request.param("since") for request in server.requests[asked:] if request.path == path]
    assert since[0] == "35"


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


async def test_a_body_that_is_no_json_is_taken_where_it_may_be(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    url = server.serve(
        path, Response("grün".encode("latin-1"), headers={"Content-Type": "text/plain; charset=latin-1"})
    )
    async with triggerer() as running:
        watcher = watch(running, url, "asset", expect="any")
        await until(lambda: watcher.bodies, "the text")
        assert watcher.bodies == ["grün"]
        assert watcher.messages[0]["headers"] == {"Content-Type": "text/plain; charset=latin-1"}


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


async def test_a_poisonous_item_is_logged_and_keeps_no_other(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(5), {"id": 5, "poison": True}, *numbered(5, 6))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", apply_function="tests.sqs.filters.explode_on_poison", **ITEMS)
        await until(lambda: len(watcher.ids) == 10, "all but one")
        await until(lambda: "is refused and won't come again: id 5" in caplog.text, "a line about the other")
        items.publish(*numbered(1, 11))
        await until(lambda: len(watcher.ids) == 11, "one more")
        assert caplog.text.count("is refused and won't come again") == 1


async def test_what_fails_comes_again_without_being_asked_for(
    server: RestServer, path: str, supervisor: Supervisor
) -> None:
    answers = in_turn(Response(b'{"items": [{"id": 10, "n": 10}]}'), Response(b'{"items": []}'))
    url = server.serve(path, answers)
    async with triggerer() as running:
        watcher = watch(
            running,
            url,
            "asset",
            apply_function="tests.conformance.filters.fail_first",
            on_error="release",
            release_delay_seconds=1.0,
            **ITEMS,
        )
        await until(lambda: watcher.bodies, "the item, the second time")
        assert watcher.bodies == [{"id": 10, "n": 10}]


@pytest.mark.slow
async def test_two_hundred_errors_are_no_events(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    good = Response(b'{"items": [{"id": 1}]}')
    odd = [
        Response(b"<html>Sorry</html>", headers={"Content-Type": "text/html"}),
        Response(b'{"error": "quota exceeded"}'),
        Response(b'{"items": {"id": 7}}'),
        Response(b""),
        Response(status=500),
    ]
    url = server.serve(path, in_turn(*odd, good))
    async with triggerer() as running:
        watcher = watch(running, url, "asset", **ITEMS)
        await until(lambda: watcher.bodies, "the item")
        assert watcher.bodies == [{"id": 1}]
        assert watcher.restarts == 0
    assert "not JSON: 18 bytes, text/html" in caplog.text
    assert "items_path gives null, expected a list" in caplog.text
    assert "items_path gives an object, expected a list" in caplog.text


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
        # Six segments, as many again that are replaced, and the rest.
        assert len(supervisor.values["asset"]) <= 13, "the store grows"
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

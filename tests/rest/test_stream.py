"""The promises of `RestPollTrigger`, on a real server under watchers on Airflow's real `SharedStreamManager`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from services.rest import Response, RestServer, in_turn
from services.rest_list import Pages, RestList
from tests.airflow_loop import triggerer, until
from tests.rest.conftest import ITEMS, Supervisor, numbered, numbers, watch


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
        assert numbers(watcher.bodies)[:95] == list(range(95))
        # A poll that is under way may have passed the page that is filled up.
        assert sorted(numbers(watcher.bodies)) == list(range(115))


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


async def test_a_poisonous_item_is_logged_and_keeps_no_other(
    server: RestServer, path: str, supervisor: Supervisor, caplog: pytest.LogCaptureFixture
) -> None:
    items = RestList(server, path)
    items.publish(*numbered(5), {"id": 5, "poison": True}, *numbered(5, 6))
    async with triggerer() as running:
        watcher = watch(running, items.url, "asset", apply_function="tests.filters.explode_on_poison", **ITEMS)
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

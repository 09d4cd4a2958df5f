"""Servers that misbehave: each does what the documentation says, and no trigger restarts."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import logging
import time
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import psutil
import pytest

from airflow_provider_sharedstream.brokers.rest.http import _unpacked
from services.rest import Request, Response, RestServer, in_turn
from tests.airflow_loop import Watcher, triggerer, until
from tests.rest.conftest import ITEMS, watch

GOOD = Response(b'{"items": [{"id": 1}]}', headers={"Content-Type": "application/json"})

pytestmark = pytest.mark.usefixtures("supervisor")


async def fetched(watcher: Watcher) -> None:
    """Wait until it has its item, and see that it was never started again."""
    await until(lambda: watcher.bodies, "the item")
    assert watcher.bodies == [{"id": 1}]
    assert watcher.restarts == 0


def gaps(server: RestServer, path: str) -> list[float]:
    """Seconds from one request to the next."""
    times = [request.at for request in server.requests if request.path == path]
    return [later - earlier for earlier, later in itertools.pairwise(times)]


async def test_retry_after_seven_seconds(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    wait = Response(status=429, headers={"Retry-After": "7"})
    url = server.serve(path, in_turn(wait, GOOD))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", **ITEMS))
    assert 7.0 <= gaps(server, path)[0] < 9.0
    assert "asks to wait; it is asked again in 7." in caplog.text


async def test_retry_after_a_date(server: RestServer, path: str) -> None:
    def wait(request: Request) -> Response:
        until_then = datetime.now(timezone.utc) + timedelta(seconds=4)
        return Response(status=503, headers={"Retry-After": format_datetime(until_then, usegmt=True)})

    url = server.serve(path, in_turn(GOOD, wait, GOOD))
    async with triggerer() as running:
        watcher = watch(running, url, "asset", **ITEMS)
        await until(lambda: server.count(path) >= 3, "the request after the wait")
        await fetched(watcher)
    # A date has whole seconds.
    assert 3.0 <= gaps(server, path)[1] < 6.0


@pytest.mark.slow
async def test_a_server_that_always_asks_to_come_at_once_is_asked_ever_more_slowly(
    server: RestServer, path: str
) -> None:
    url = server.serve(path, Response(status=429, headers={"Retry-After": "0"}))
    async with triggerer() as running:
        watch(running, url, "asset", poll_interval=0.1, **ITEMS)
        await asyncio.sleep(10)
    assert 3 <= server.count(path) <= 40


async def test_five_hundred_three_times(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    trouble = Response(b"Internal Server Error", status=500)
    url = server.serve(path, in_turn(trouble, trouble, trouble, GOOD))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", **ITEMS))
    assert server.count(path) >= 4
    assert caplog.text.count("failed, next try in") == 3


@pytest.mark.slow
async def test_a_later_page_that_always_fails_is_not_asked_for_hot(server: RestServer, path: str) -> None:
    url = server.serve(
        path, Response(b'{"items": [{"id": 1}]}', headers={"Link": f'<{server.url}{path}-2>; rel="next"'})
    )
    server.serve(f"{path}-2", Response(status=500))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", poll_interval=0.1, **ITEMS))
        before = server.count(path)
        await asyncio.sleep(15)
        assert 1 <= server.count(path) - before <= 12


async def test_twenty_megabytes(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    url = server.serve(path, Response(json.dumps({"items": ["x" * 20_000_000]}).encode()))
    packed = server.serve(f"{path}-packed", _packed(b'{"items": ["' + b"x" * 200_000_000 + b'"]}'))
    before = psutil.Process().memory_info().rss
    async with triggerer() as running:
        watchers = [watch(running, address, f"asset {address}", **ITEMS) for address in (url, packed)]
        await until(lambda: caplog.text.count("larger than 10485760 bytes") >= 2, "a line about each")
        assert not any(watcher.events or watcher.restarts for watcher in watchers)
    assert psutil.Process().memory_info().rss - before < 150_000_000
    assert server.count(path) == 1, "it is asked for again at once"


def _packed(body: bytes) -> Response:
    return Response(gzip.compress(body, 1), headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize("members", [1, 3])
async def test_packed_and_whole(server: RestServer, path: str, members: int) -> None:
    size = len(GOOD.body) // members + 1
    pieces = [GOOD.body[start : start + size] for start in range(0, len(GOOD.body), size)]
    body = b"".join(map(gzip.compress, pieces))
    url = server.serve(path, Response(body, headers={"Content-Encoding": "gzip"}))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", **ITEMS))


def test_a_great_many_members_take_no_longer_than_their_bytes() -> None:
    def seconds(members: int) -> float:
        packed = gzip.compress(b"") * members
        began = time.process_time()
        assert _unpacked(packed, 1024) == b""
        return time.process_time() - began

    assert seconds(40_000) < 8 * seconds(10_000), "four times as many took more than eight times as long"


async def test_a_redirect_loop(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    url = server.serve(path, Response(status=302, headers={"Location": f"{path}-b"}))
    server.serve(f"{path}-b", Response(status=307, headers={"Location": path}))
    async with triggerer() as running:
        watcher = watch(running, url, "asset", **ITEMS)
        await until(lambda: "redirects more than 5 times: in a loop?" in caplog.text, "a line about it")
        await asyncio.sleep(3)
        assert server.count(path) + server.count(f"{path}-b") == 6, "it goes on in circles"
        assert watcher.restarts == 0


async def test_a_slow_drip(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    drip = Response(GOOD.body, drip_seconds=0.3)
    url = server.serve(path, in_turn(drip, GOOD))
    async with triggerer() as running:
        started = time.monotonic()
        await fetched(watch(running, url, "asset", timeout_seconds=2.0, **ITEMS))
        assert time.monotonic() - started > 2.0
    assert "no complete answer within 2 s" in caplog.text


DEEP = b'{"items": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
RUBBISH = {
    "another protocol": Response(raw=b"SSH-2.0-OpenSSH_9.6\r\n"),
    "half an answer": Response(raw=b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"items": ['),
    "a negative length": Response(raw=b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
    "broken chunks": Response(raw=b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n"),
    "nothing": Response(raw=b""),
    "gzip that is none": Response(b"not gzip", headers={"Content-Encoding": "gzip"}),
    "gzip that ends early": Response(gzip.compress(GOOD.body)[:-9], headers={"Content-Encoding": "gzip"}),
    "brotli": Response(GOOD.body, headers={"Content-Encoding": "br"}),
    "too deep": Response(DEEP),
    "half a character": Response(b"\xff\xfe\x00\xd8"),
    "304 of nothing": Response(status=304),
    "a senseless Retry-After": Response(status=500, headers={"Retry-After": "soon"}),
    "a text for a list": Response(b'{"items": "text"}'),
    "a next page nowhere": Response(b'{"items": []}', headers={"Link": '<http://[bad>; rel="next"'}),
}


@pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
async def test_rubbish(server: RestServer, path: str, caplog: pytest.LogCaptureFixture, rubbish: Response) -> None:
    url = server.serve(path, in_turn(rubbish, GOOD))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", **ITEMS))
    assert "Traceback" not in caplog.text
    assert "in a way not foreseen" not in caplog.text
    assert caplog.text.count("failed, next try in") == 1


async def test_senseless_link_headers(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    url = server.serve(path, Response(GOOD.body, headers={"Link": "<<<>>>; rel=prev, ;;;, , <"}))
    async with triggerer() as running:
        await fetched(watch(running, url, "asset", **ITEMS))
    assert "failed, next try in" not in caplog.text


async def test_a_page_that_leads_back(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    url = server.serve(path, Response(GOOD.body, headers={"Link": f'<{path}?at=1>; rel="next"'}))
    async with triggerer() as running:
        watcher = watch(running, url, "asset", poll_interval=1.0, **ITEMS)
        await fetched(watcher)
        before = server.count(path)
        await asyncio.sleep(4)
        assert server.count(path) - before <= 12, "two pages a poll"
    assert "a page leads back to an earlier one" in caplog.text


async def test_pages_without_an_end(server: RestServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    def page(request: Request) -> Response:
        at = int(request.param("at", "0")) + 1
        return Response(GOOD.body, headers={"Link": f'<{path}?at={at}>; rel="next"'})

    url = server.serve(path, page)
    async with triggerer() as running:
        watcher = watch(running, url, "asset", poll_interval=1.0, max_pages=10, **ITEMS)
        await fetched(watcher)
        before = server.count(path)
        await asyncio.sleep(5)
        assert server.count(path) - before <= 70, "ten pages a poll"


async def test_what_is_refused_is_said_once_and_not_asked_for_hot(
    server: RestServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = {401: "access is refused", 403: "access is refused", 404: "nothing at this address", 410: "nothing at"}
    async with triggerer() as running:
        for status in (400, 401, 403, 404, 405, 410, 418, 451):
            url = server.serve(f"{path}-{status}", Response(status=status))
            watch(running, url, f"asset {status}", **ITEMS)
        await until(lambda: caplog.text.count("can't be used, next try in") == 8, "a line about each")
        await asyncio.sleep(3)
    for status in (400, 401, 403, 404, 405, 410, 418, 451):
        assert f"the endpoint 127.0.0.1:{server.port}{path}-{status}: status {status}" in caplog.text
        assert server.count(f"{path}-{status}") == 1
    for status, text in expected.items():
        assert f"status {status}: {text}" in caplog.text or f"status {status}: there is {text}" in caplog.text


async def test_the_server_goes_away_and_comes_back(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with RestServer() as server:
        url = server.serve(path, lambda _: Response(json.dumps({"items": [{"id": 1}]}).encode()))
        async with triggerer() as running:
            watcher = watch(running, url, "asset", **ITEMS)
            await fetched(watcher)
            await asyncio.to_thread(server.cut)
            await until(lambda: "failed, next try in" in caplog.text, "a line about it")
            await asyncio.to_thread(server.heal)
            before = server.count(path)
            with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
                await until(lambda: server.count(path) > before + 2, "requests again")
            assert watcher.bodies == [{"id": 1}]
            assert watcher.restarts == 0

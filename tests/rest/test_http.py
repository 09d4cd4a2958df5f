"""How an endpoint is reached: credentials, TLS, proxies, redirects."""

from __future__ import annotations

import base64
import json
import logging
import os
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_sharedstream.brokers.rest.adapter import RestConsumer
from airflow_provider_sharedstream.brokers.rest.errors import retry_after_seconds
from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text
from services.kafka_certificates import Certificates
from services.rest import Response, RestServer
from tests.rest.conftest import connection, last

SECRET = "s3cr3t-of-the-test"
GOOD = Response(b'[{"id": 1}]', headers={"Content-Type": "application/json"})


@pytest.fixture
def other() -> Iterator[RestServer]:
    """Another host: the same name and another port."""
    with RestServer() as running:
        yield running


async def asked(endpoint: str, conn_id: str | None = None, **arguments: Any) -> RestConsumer:
    """Connect, which asks once, and let go."""
    consumer = RestConsumer(endpoint, conn_id, poll_interval=0.1, **arguments)
    try:
        await consumer.connect()
    finally:
        await consumer.close()
    return consumer


async def test_basic(server: RestServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server.serve(path, GOOD)
    conn_id = connection(monkeypatch, host="127.0.0.1", port=server.port, login="me", password=SECRET)
    await asked(path, conn_id)
    expected = base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert last(server, path).headers["authorization"] == f"Basic {expected}"


async def test_bearer_headers_and_parameters_of_the_connection(
    server: RestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve(path, GOOD)
    extra = {"bearer_token": SECRET, "headers": {"X-One": "1"}, "X-Two": "2", "params": {"api_key": SECRET, "a": "b"}}
    conn_id = connection(monkeypatch, host=server.url, extra=json.dumps(extra))
    await asked(f"{path}?q=x", conn_id, headers={"X-Two": "mine"}, params={"p": "1 2", "list": ["a", "b"]})
    request = last(server, path)
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert (request.headers["x-one"], request.headers["x-two"]) == ("1", "mine")
    assert request.query == {"q": ["x"], "p": ["1 2"], "list": ["a", "b"], "api_key": [SECRET], "a": ["b"]}


async def test_an_auth_class(server: RestServer, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server.serve(path, GOOD)
    conn_id = connection(monkeypatch, host=server.url, extra=json.dumps({"auth_kwargs": {"key": SECRET}}))
    await asked(path, conn_id, auth_class="tests.rest.auth.Signed")
    assert last(server, path).headers["x-signature"] == f"sig {SECRET} GET"
    conn_id = connection(monkeypatch, host=server.url, login="k", password="p")
    await asked(path, conn_id, auth_class="tests.rest.auth.Signed")
    assert last(server, path).headers["x-signature"] == "p k GET"
    with pytest.raises(SourceUnavailable, match=r"auth_class gives str, expected an httpx\.Auth"):
        await asked(path, conn_id, auth_class="tests.rest.auth.nothing_of_the_kind")
    conn_id = connection(monkeypatch, host=server.url, extra=json.dumps({"auth_kwargs": {"wrong": SECRET}}))
    with pytest.raises(SourceUnavailable, match="auth_class can't be called") as caught:
        await asked(path, conn_id, auth_class="tests.rest.auth.Signed")
    assert SECRET not in str(caught.value)


async def test_post_and_a_field_of_its_data(server: RestServer, path: str) -> None:
    server.serve(path, Response(b'{"items": [1], "at": "c1"}'))
    consumer = RestConsumer(
        f"{server.url}{path}",
        None,
        method="POST",
        data={"query": "{ all }", "variables": {"first": 5}},
        items_path="items",
        cursor_path="at",
        cursor_param="data.variables.after",
        next_page="cursor",
        poll_interval=0.1,
    )
    await consumer.connect()
    await consumer.receive(10)
    await consumer.close()
    first = next(request for request in server.requests if request.path == path)
    assert (first.method, json.loads(first.body)) == ("POST", {"query": "{ all }", "variables": {"first": 5}})
    assert first.headers["content-type"] == "application/json"
    await consumer.connect()
    await consumer.close()


async def test_an_address_of_another_host_than_the_connection_s(
    server: RestServer, other: RestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.serve(path, GOOD)
    conn_id = connection(monkeypatch, host=server.url, login="me", password=SECRET)
    with pytest.raises(SourceUnavailable, match="is on another host than http_conn_id='rest_test' leads to"):
        await asked(f"{other.url}{path}", conn_id)
    assert not other.requests
    # http_default is there in every Airflow, and leads anywhere.
    monkeypatch.setenv("AIRFLOW_CONN_HTTP_DEFAULT", os.environ["AIRFLOW_CONN_REST_TEST"])
    await asked(f"{other.url}{path}", "http_default")
    assert "authorization" not in last(other, path).headers


async def test_redirects_and_pages_stay_on_the_host(
    server: RestServer, other: RestServer, path: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    extra = {"X-Api-Key": SECRET, "params": {"token": SECRET}}
    conn_id = connection(monkeypatch, host=server.url, login="me", password=SECRET, extra=json.dumps(extra))
    other.serve("/there", GOOD)
    server.serve(path, Response(status=302, headers={"Location": f"{other.url}/there?token={SECRET}"}))
    with pytest.raises(SourceUnavailable, match=r"status 302 leads to http://127\.0\.0\.1:\d+, which is not") as caught:
        await asked(path, conn_id)
    assert SECRET not in str(caught.value)
    assert not other.requests
    with caplog.at_level(logging.INFO):
        await asked(path, conn_id, allowed_hosts=[f"127.0.0.1:{other.port}"])
    (request,) = other.requests
    assert SECRET not in str(request), "the other host was told a secret"
    assert SECRET not in caplog.text
    # Within the host it goes along.
    server.serve(f"{path}-moved", GOOD)
    server.serve(path, Response(status=308, headers={"Location": f"{path}-moved?a=1"}))
    await asked(path, conn_id)
    assert last(server, f"{path}-moved").query == {"a": ["1"], "token": [SECRET]}
    assert last(server, f"{path}-moved").headers["x-api-key"] == SECRET
    server.serve(path, Response(b"[1]", headers={"Link": f'<{other.url}/there>; rel="next"'}))
    consumer = RestConsumer(path, conn_id, items_path="@", poll_interval=0.1)
    await consumer.connect()
    with pytest.raises(SourceUnavailable, match="next_page leads to http://127"):
        await _read_on(consumer)
    await consumer.close()


async def _read_on(consumer: RestConsumer) -> None:
    from airflow_provider_sharedstream.stream.disposition import Disposition

    for _ in range(20):
        if found := await consumer.receive(10):
            await consumer.settle(Disposition.ACCEPT, found)


@pytest.mark.parametrize("scheme", ["ftp", "file", "javascript"])
async def test_redirects_to_another_protocol(server: RestServer, path: str, scheme: str) -> None:
    server.serve(path, Response(status=302, headers={"Location": f"{scheme}://127.0.0.1:{server.port}/etc/passwd"}))
    with pytest.raises(SourceUnavailable, match="which is not the endpoint's own host"):
        await asked(f"{server.url}{path}", allowed_hosts=["127.0.0.1"])


async def test_tls(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Certificates(tmp_path / "ours")
    strangers = Certificates(tmp_path / "theirs")
    issued, client = authority.issue("server"), authority.issue("client")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.ca_file))
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    files = [str(client.certificate_file), str(client.key_file)]
    with RestServer(tls=context) as server:
        server.serve(path, GOOD)

        def conn_id(**extra: Any) -> str:
            return connection(monkeypatch, host=server.url, extra=json.dumps(extra))

        with pytest.raises(SourceUnavailable, match="the server's certificate is not trusted"):
            await asked(path, conn_id(cert=files))
        with pytest.raises(SourceUnavailable, match="the server's certificate is not trusted"):
            await asked(path, conn_id(cert=files, verify=str(strangers.ca_file)))
        with pytest.raises(SourceUnavailable, match="'verify' or 'cert' of the connection's extra can't be used"):
            await asked(path, conn_id(cert=files, verify=str(tmp_path / "no such file")))
        with pytest.raises(httpx.TransportError) as refused:
            await asked(path, conn_id(verify=str(authority.ca_file)))
        # Depends on whether the server's alert or the end of its connection is seen first.
        assert re.search(r"(?i)certificate|disconnected|ssl|EOF|EndOfStream|reset|broken", error_text(refused.value))
        assert not server.requests
        await asked(path, conn_id(cert=files, verify=str(authority.ca_file)))
        await asked(path, conn_id(cert=files, verify=False))
        assert server.count(path) == 2


async def test_proxies_of_the_environment(
    server: RestServer, other: RestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve(path, GOOD)
    other.serve(path, GOOD)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("HTTP_PROXY", other.url)
    monkeypatch.setenv("http_proxy", other.url)
    await asked(f"{server.url}{path}")
    assert [request.target for request in other.requests] == [f"{server.url}{path}"]
    assert not server.count(path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    await asked(f"{server.url}{path}")
    assert server.count(path) == 1
    monkeypatch.setenv("no_proxy", "")
    conn_id = connection(monkeypatch, host=server.url, extra=json.dumps({"trust_env": False}))
    await asked(path, conn_id)
    assert (server.count(path), len(other.requests)) == (2, 1)


async def test_what_is_wrong_with_a_connection_is_said(
    server: RestServer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.serve(path, GOOD)
    with pytest.raises(SourceUnavailable, match="http_conn_id='nowhere': there is no such connection"):
        await asked(path, "nowhere")
    with pytest.raises(SourceUnavailable, match="it names no host, and neither does http_conn_id=None"):
        await asked(path, None)
    with pytest.raises(SourceUnavailable, match="'X-Odd' in the extra is neither a setting nor a header"):
        await asked(path, connection(monkeypatch, host=server.url, extra=json.dumps({"X-Odd": {"a": SECRET}})))
    with pytest.raises(SourceUnavailable, match="'headers' in the extra is no JSON object"):
        await asked(path, connection(monkeypatch, host=server.url, extra=json.dumps({"headers": [SECRET]})))
    with pytest.raises(SourceUnavailable, match="the address holds a login"):
        await asked(path, connection(monkeypatch, host=f"http://me:{SECRET}@127.0.0.1:{server.port}"))


async def test_cookies_do_not_pile_up(server: RestServer, path: str) -> None:
    server.serve(path, lambda request: Response(GOOD.body, headers={"Set-Cookie": f"c{len(server.requests)}=1"}))
    consumer = RestConsumer(f"{server.url}{path}", None, poll_interval=0.1)
    await consumer.connect()
    assert consumer._fetcher is not None
    assert consumer.poller is not None
    for _ in range(3):
        await consumer._fetcher.fetch(consumer.poller.first)
    await consumer.close()
    assert not [request for request in server.requests if request.path == path and "cookie" in request.headers]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("1000000000", 3600.0),
        ("-5", None),
        ("٧", None),
        ("", None),
        ("tomorrow", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600.0),
        ("Mon, 99 Foo 2026", None),
        (None, None),
    ],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value) == seconds

"""One request to an endpoint: within limits of time and size, on its own host, with its credentials kept there."""

from __future__ import annotations

import asyncio
import urllib.request
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_provider_sharedstream.brokers.rest.asks import Ask, Validators
from airflow_provider_sharedstream.brokers.rest.credentials import (
    PORTS,
    credentials_stay,
    keep_out_of_debug_log,
    same_place,
)
from airflow_provider_sharedstream.brokers.rest.errors import AnswerUnusable, NotConnected, refusal, too_large
from airflow_provider_sharedstream.connections.http import HttpAccess
from airflow_provider_sharedstream.messages.compression import gunzip
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0
MOST_REDIRECTS = 5


class Answer(NamedTuple):
    """What came.

    :param url: from where, after redirects.
    :param link: the target of its ``Link: rel=next``.
    """

    body: bytes
    content_type: str
    url: str
    link: str | None
    validators: Validators


class Fetcher:
    """A client for one endpoint.

    :param access: how it is reached.
    :param url: the endpoint's.
    :param method: GET or POST.
    :param headers: sent with each request, wherever it goes.
    :param timeout_seconds: for an answer as a whole.
    :param max_response_bytes: of a body, unpacked.
    :param allowed_hosts: besides the endpoint's own, where redirects and pages may lead: ``host`` or ``host:port``.
    """

    def __init__(
        self,
        access: HttpAccess,
        url: str,
        *,
        method: str,
        headers: Mapping[str, str],
        timeout_seconds: float,
        max_response_bytes: int,
        allowed_hosts: frozenset[str],
    ) -> None:
        self._access = access
        self._own = url
        self._method = method
        given = {name.lower(): value for name, value in headers.items()}
        self._stand = frozenset(given)
        # Other encodings would have to be unpacked without a limit, or not at all.
        self._headers = {"accept": "application/json, */*;q=0.5", **given, "accept-encoding": "gzip"}
        self._timeout_seconds = timeout_seconds
        self._max_response_bytes = max_response_bytes
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._client: httpx.AsyncClient | None = None

    async def open(self) -> None:
        """Make the client; nothing is sent.

        :raises SourceUnavailable: the connection's certificates can't be read.
        """
        import httpx

        keep_out_of_debug_log()
        tls = await asyncio.to_thread(self._access.tls)
        own = httpx.URL(self._own)

        def transport(proxy: str | None) -> httpx.AsyncBaseTransport:
            return httpx.AsyncHTTPTransport(
                verify=tls, proxy=proxy, limits=httpx.Limits(max_connections=4, keepalive_expiry=30.0)
            )

        self._client = httpx.AsyncClient(
            transport=credentials_stay(transport(self._proxy(own)), own, self._access, self._stand),
            timeout=httpx.Timeout(self._timeout_seconds, connect=min(CONNECT_SECONDS, self._timeout_seconds)),
        )

    def _proxy(self, own: httpx.URL) -> str | None:
        if not self._access.trust_env or urllib.request.proxy_bypass(own.host):
            return None
        proxies = urllib.request.getproxies()
        found = proxies.get(own.scheme) or proxies.get("all")
        return found if not found or "://" in found else f"http://{found}"

    async def close(self) -> None:
        """Let go of the connection. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def fetch(self, ask: Ask, validators: Validators | None = None) -> Answer | None:
        """Return the answer, or None where nothing has changed since the one that ``validators`` are of.

        :raises Throttled: it is to be asked again later.
        :raises SourceUnavailable: somebody has to change something.
        :raises AnswerUnusable: what came can't be used.
        :raises ServerTrouble: the server has trouble.
        """
        import anyio

        if self._client is None:
            raise NotConnected("the client was closed")
        try:
            with anyio.fail_after(self._timeout_seconds):
                return await self._follow(self._client, self._request(ask, validators))
        except TimeoutError:
            raise TimeoutError(f"no complete answer within {self._timeout_seconds:g} s") from None
        finally:
            if self._client is not None:
                # A jar that is never emptied makes requests grow until they are refused.
                self._client.cookies.clear()

    def _request(self, ask: Ask, validators: Validators | None) -> httpx.Request:
        import httpx

        assert self._client is not None
        headers = dict(self._headers)
        if validators is not None and validators.etag:
            headers["If-None-Match"] = validators.etag
        if validators is not None and validators.last_modified:
            headers["If-Modified-Since"] = validators.last_modified
        try:
            url = httpx.URL(ask.url).copy_merge_params(dict(ask.params)) if ask.params else httpx.URL(ask.url)
        except (httpx.InvalidURL, ValueError, TypeError) as error:
            raise AnswerUnusable(f"the next page's address is not a URL: {type(error).__name__}") from None
        self._check_target(url, "next_page leads")
        body: dict[str, Any] = {}
        if isinstance(ask.data, str):
            body = {"content": ask.data.encode()}
        elif ask.data is not None:
            body = {"json": ask.data}
        return self._client.build_request(self._method, self._without_secrets(url), headers=headers, **body)

    async def _follow(self, client: httpx.AsyncClient, request: httpx.Request) -> Answer | None:
        for _ in range(MOST_REDIRECTS + 1):
            auth = self._access.auth if self._is_own(request.url) else None
            response = await client.send(request, stream=True, auth=auth, follow_redirects=False)
            try:
                if response.next_request is None:
                    return await self._answer(response)
                request = response.next_request
                self._check_target(request.url, f"status {response.status_code} leads")
                request.url = self._without_secrets(request.url)
            finally:
                await response.aclose()
        raise SourceUnavailable(f"the endpoint redirects more than {MOST_REDIRECTS} times: in a loop?")

    async def _answer(self, response: httpx.Response) -> Answer | None:
        status = response.status_code
        if status == 304:
            return None
        if not response.is_success:
            raise refusal(status, response.headers.get("Retry-After"))
        body = b"" if status == 204 else await self._body(response)
        link = next((one.get("url") for one in response.links.values() if _is_next(one.get("rel"))), None)
        return Answer(
            body,
            response.headers.get("Content-Type", "no content type"),
            str(response.url),
            link,
            Validators(response.headers.get("ETag"), response.headers.get("Last-Modified")),
        )

    async def _body(self, response: httpx.Response) -> bytes:
        limit = self._max_response_bytes
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > limit:
                raise too_large(limit)
        encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            return await asyncio.to_thread(_unpacked, bytes(body), limit)
        if encoding in ("identity", ""):
            return bytes(body)
        raise AnswerUnusable(f"the answer is encoded as {encoding[:40]!r}, which was not asked for")

    def _check_target(self, url: httpx.URL, what: str) -> None:
        """Raise where a request must not go."""
        if self._is_own(url):
            return
        host, port = url.host, url.port or PORTS.get(url.scheme)
        if url.scheme in PORTS and {host, f"{host}:{port}"} & self._allowed_hosts:
            return
        raise SourceUnavailable(
            f"{what} to {url.scheme}://{host}:{port}, which is not the endpoint's own host. "
            "If it is to be trusted, name it in allowed_hosts; it is not sent the connection's credentials."
        )

    def _is_own(self, url: httpx.URL) -> bool:
        import httpx

        return same_place(httpx.URL(self._own), url)

    def _without_secrets(self, url: httpx.URL) -> httpx.URL:
        """Return ``url`` without the connection's parameters, which a server may have put into it."""
        for name in self._access.params:
            if name in url.params:
                url = url.copy_remove_param(name)
        return url


def _unpacked(packed: bytes, limit: int) -> bytes:
    try:
        made = gunzip(packed, limit)
    except EOFError:
        raise AnswerUnusable("the answer's gzip data ends early") from None
    except (OSError, zlib.error):
        raise AnswerUnusable("the answer is said to be gzip, and is not") from None
    if len(made) > limit:
        raise too_large(limit)
    return made


def _is_next(relation: str | None) -> bool:
    return relation is not None and "next" in relation.lower().split()

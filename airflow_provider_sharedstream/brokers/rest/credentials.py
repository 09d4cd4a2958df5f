"""The connection's credentials go to the endpoint's own host, and nowhere else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.connections.http import HttpAccess

if TYPE_CHECKING:
    import httpx

PORTS = {"http": 80, "https": 443}


def _tells_no_headers(record: logging.LogRecord) -> bool:
    """Drop httpcore's line on the headers of an answer. They hold cookies, and addresses with what we sent."""
    return "receive_response_headers" not in str(record.msg)


def keep_out_of_debug_log() -> None:
    """Keep headers of answers out of the log where it shows everything."""
    logging.getLogger("httpcore.http11").addFilter(_tells_no_headers)


def credentials_stay(
    inner: httpx.AsyncBaseTransport, own: httpx.URL, access: HttpAccess, stand: frozenset[str]
) -> httpx.AsyncBaseTransport:
    """Return a transport that adds the connection's headers and parameters to what goes to the endpoint's own host.

    Here, and not in the client, which logs the address of each request.

    :param stand: names of headers that stand as they are, in small letters.
    """
    import httpx

    class CredentialsStay(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if not same_place(own, request.url):
                return await inner.handle_async_request(request)
            headers = httpx.Headers(request.headers)
            for name, value in access.headers.items():
                signed = name.lower() == "authorization" and name in headers
                if not signed and name.lower() not in stand:
                    headers[name] = value
            return await inner.handle_async_request(
                httpx.Request(
                    request.method,
                    request.url.copy_merge_params(dict(access.params)) if access.params else request.url,
                    headers=headers,
                    stream=request.stream,
                    extensions=request.extensions,
                )
            )

        async def aclose(self) -> None:
            await inner.aclose()

    return CredentialsStay()


def same_place(own: httpx.URL, other: httpx.URL) -> bool:
    """Whether ``other`` is on the same host and port, or on the same host and https where ``own`` is http."""
    if own.host != other.host:
        return False
    ports = (own.port or PORTS.get(own.scheme), other.port or PORTS.get(other.scheme))
    if own.scheme == other.scheme:
        return ports[0] == ports[1]
    return (own.scheme, other.scheme) == ("http", "https") and ports == (80, 443)

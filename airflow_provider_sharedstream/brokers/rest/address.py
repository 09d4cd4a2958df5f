"""Where an endpoint is: as an address, and in words that hold no secret."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_sharedstream.connections.http import DEFAULT_CONN_ID, HttpAccess, http_access, joined
from airflow_provider_sharedstream.messages.callables import resolve
from airflow_provider_sharedstream.stream.errors import SourceUnavailable


async def reach(endpoint: str, http_conn_id: str | None, auth_class: str | None) -> tuple[HttpAccess, str]:
    """Return how an endpoint is reached, and its address. The arguments are those of :class:`RestPollTrigger`.

    :raises SourceUnavailable: it can't be, or would be given the credentials of another host.
    """
    make_auth = None if auth_class is None else resolve(auth_class, "auth_class")
    access = await http_access(http_conn_id, make_auth)
    url = joined(access.base_url, endpoint)
    if url is None:
        raise SourceUnavailable(f"it names no host, and neither does http_conn_id={http_conn_id!r}")
    if access.base_url is not None and urlsplit(url).netloc != urlsplit(access.base_url).netloc:
        if http_conn_id != DEFAULT_CONN_ID:
            raise SourceUnavailable(
                f"it is on another host than http_conn_id={http_conn_id!r} leads to, and must not be sent "
                "its credentials. Name a connection for that host, or None."
            )
        access = await http_access(None, make_auth)
    if "@" in urlsplit(url).netloc:
        raise SourceUnavailable("the address holds a login: put it into the connection's login and password")
    return access, url


def place_of(endpoint: str, http_conn_id: str | None) -> str:
    """Return the endpoint in words, without login and query, which may hold secrets."""
    address, _, _ = str(endpoint).partition("?")
    scheme, separator, place = address.partition("#")[0].partition("://")
    if not separator:
        return f"{http_conn_id}/{scheme.lstrip('/')}"
    host, slash, path = place.partition("/")
    return f"{host.rpartition('@')[2]}{slash}{path}"


def position_key(*what: Any) -> str:
    """Return a short hash of what says which items there are, and what they are known by."""
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()[:16]

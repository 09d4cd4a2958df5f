"""From an ``http`` connection to how an endpoint is reached, and with which credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

if TYPE_CHECKING:
    import httpx

DEFAULT_CONN_ID = "http_default"

SETTINGS = frozenset(
    {
        "allow_redirects",
        "auth_kwargs",
        "bearer_token",
        "cert",
        "check_response",
        "headers",
        "max_redirects",
        "params",
        "proxies",
        "proxy",
        "stream",
        "timeout",
        "trust_env",
        "verify",
    }
)
"""Keys of the extra that aren't headers. Every other one is, as the official HTTP provider has it."""


@dataclass(frozen=True)
class HttpAccess:
    """How an endpoint is reached.

    :param base_url: where the connection leads; None: it names no host.
    :param auth: signs each request to the endpoint's host.
    :param headers: go to the endpoint's host alone.
    :param params: query parameters that go to the endpoint's host alone.
    :param verify: whether servers' certificates are verified, or a file of the authorities to verify them with.
    :param cert: the file of the client's certificate with its key, or a list of the two files, and the key's password.
    :param trust_env: whether proxies are taken from the environment.
    """

    base_url: str | None
    auth: httpx.Auth | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    params: Mapping[str, Any] = field(default_factory=dict, repr=False)
    verify: bool | str = True
    cert: str | Sequence[str] | None = field(default=None, repr=False)
    trust_env: bool = True

    def tls(self) -> ssl.SSLContext:
        """Return how connections are made safe. It reads files, and so blocks.

        :raises SourceUnavailable: a file can't be used.
        """
        import httpx

        verify, cert = self.verify, self.cert
        try:
            if isinstance(verify, str):
                context = ssl.create_default_context(cafile=verify)
            else:
                context = httpx.create_ssl_context(verify=verify)
            if cert:
                context.load_cert_chain(*([cert] if isinstance(cert, str) else cert))
        except (OSError, TypeError, ValueError) as error:
            raise SourceUnavailable(f"'verify' or 'cert' of the connection's extra can't be used: {error}") from error
        return context


async def http_access(http_conn_id: str | None, make_auth: Callable[..., Any] | None = None) -> HttpAccess:
    """Return what the connection says.

    :param http_conn_id: the Airflow connection; None: none, as where there is no ``http_default``.
    :param make_auth: a subclass of :class:`httpx.Auth`, or what makes one. It is called with ``auth_kwargs`` of the
        connection's extra, or with its login and password.
    :raises SourceUnavailable: the connection is missing or can't be used.
    """
    connection = await connection_of("http_conn_id", http_conn_id, "http") if http_conn_id else None
    if connection is None:
        if http_conn_id not in (None, DEFAULT_CONN_ID):
            raise missing("http_conn_id", str(http_conn_id))
        return HttpAccess(base_url=None, auth=_auth(make_auth, None, None, {}, ""))
    where = f"http_conn_id={http_conn_id!r}"
    extra = connection.extra_dejson
    if not isinstance(extra, dict):
        raise SourceUnavailable(f"{where}: the extra is no JSON object")
    headers = {**_mapping(where, extra, "headers"), **{k: v for k, v in extra.items() if k not in SETTINGS}}
    for name, value in headers.items():
        if not isinstance(value, (str, int)):
            raise SourceUnavailable(f"{where}: {name!r} in the extra is neither a setting nor a header")
    if token := extra.get("bearer_token"):
        headers["Authorization"] = f"Bearer {token}"
    cert = extra.get("cert")
    verify: bool | str = extra.get("verify", True)
    return HttpAccess(
        base_url=_base_url(connection),
        auth=_auth(make_auth, connection.login, connection.password, _mapping(where, extra, "auth_kwargs"), where),
        headers={name: str(value) for name, value in headers.items()},
        params=_mapping(where, extra, "params"),
        verify={"true": True, "false": False}.get(str(verify).lower(), verify),  # a text: the file of an authority
        cert=cert,
        trust_env=bool(extra.get("trust_env", True)),
    )


def _base_url(connection: Any) -> str | None:
    host = connection.host or ""
    if not host:
        return None
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    if connection.port and ":" not in host.partition("://")[2].rpartition("]")[2].partition("/")[0]:
        scheme, _, rest = host.partition("://")
        name, slash, path = rest.partition("/")
        host = f"{scheme}://{name}:{connection.port}{slash}{path}"
    return str(host)


def _auth(
    make_auth: Callable[..., Any] | None, login: str | None, password: str | None, kwargs: dict[str, Any], where: str
) -> httpx.Auth | None:
    import httpx

    if make_auth is None:
        return httpx.BasicAuth(login, password or "") if login else None
    try:
        auth = make_auth(**kwargs) if kwargs or not login else make_auth(login, password or "")
    except Exception as error:
        # Its text may hold what it was called with.
        raise SourceUnavailable(f"auth_class can't be called with what {where} has: {type(error).__name__}") from None
    if not isinstance(auth, httpx.Auth):
        raise SourceUnavailable(f"auth_class gives {type(auth).__name__}, expected an httpx.Auth")
    return auth


def _mapping(where: str, extra: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = extra.get(name) or {}
    if not isinstance(found, dict):
        raise SourceUnavailable(f"{where}: {name!r} in the extra is no JSON object")
    return found


def joined(base_url: str | None, endpoint: str) -> str | None:
    """Return the endpoint's URL; None: neither it nor the connection names a host."""
    if "://" in endpoint:
        return endpoint
    if base_url is None:
        return None
    return f"{base_url.rstrip('/')}/{endpoint.lstrip('/')}"

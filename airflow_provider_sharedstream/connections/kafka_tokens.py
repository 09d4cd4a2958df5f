"""Tokens for ``OAUTHBEARER``: from a user's function, by OpenID Connect, for Amazon MSK and for Google Managed Kafka.

Which it is, the connection says: ``oauth_cb`` names a function; ``sasl.oauthbearer.method`` is ``oidc``; else the
addresses of the brokers tell.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import timezone
from importlib import import_module
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text

TOKEN_KEYS = frozenset(
    {
        "oauth_cb",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.method",
        "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.grant.type",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.extensions",
        "sasl.oauthbearer.token.endpoint.url",
        "https.ca.location",
        "https.ca.pem",
    }
)

EARLY_SECONDS = 60.0
"""How long before its end a token is not used for a new connection any more."""

MSK_HOST = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com(?:\.cn)?\b", re.IGNORECASE)
"""``b-1.name.abcde1.c2.kafka.eu-west-1.amazonaws.com``, with the region as the group."""
GOOGLE_HOST = re.compile(r"\bmanagedkafka\.[^,\s]*\bcloud\.goog\b", re.IGNORECASE)
"""``bootstrap.cluster.europe-west1.managedkafka.project.cloud.goog``."""


class Token(NamedTuple):
    """A token as the broker gets it.

    :param expires_at: seconds since the epoch; None: not known, so a new one is asked for each time.
    :param extensions: SASL extensions.
    """

    text: str
    expires_at: float | None = None
    extensions: Mapping[str, str] = {}


class TokenRefused(SourceUnavailable, ConnectionError):
    """Somebody has to change something before there is a token. aiokafka takes it for a connection that can't be made;
    of another kind of error its tasks would die.
    """


Fetch = Callable[[], Awaitable[Token]]


def token_provider(extra: Mapping[str, Any], bootstrap_servers: str, where: str) -> Any:
    """Return aiokafka's token provider for a connection.

    :param bootstrap_servers: tell Amazon MSK and Google Managed Kafka.
    :param where: the connection in words, for messages.
    :raises SourceUnavailable: there is no way to get a token, or it isn't allowed.
    """
    method = str(extra.get("sasl.oauthbearer.method") or "default").lower()
    if path := extra.get("oauth_cb"):
        return _provider(from_function(str(path), str(extra.get("sasl.oauthbearer.config") or ""), where), where)
    if method == "oidc":
        return _provider(by_openid_connect(extra, where), where)
    if method != "default":
        raise SourceUnavailable(f"{where}: sasl.oauthbearer.method={method!r}: expected oidc, or name an oauth_cb.")
    if found := MSK_HOST.search(bootstrap_servers):
        return _provider(for_amazon_msk(found.group(1).lower(), where), where)
    if GOOGLE_HOST.search(bootstrap_servers):
        return _provider(for_google_managed_kafka(where), where)
    raise SourceUnavailable(
        f"{where}: OAUTHBEARER needs a token: set sasl.oauthbearer.method=oidc, or oauth_cb to the dotted path of a "
        "function that returns one."
    )


def _provider(fetch: Fetch, where: str) -> Any:
    from aiokafka.abc import AbstractTokenProvider

    class Provider(AbstractTokenProvider):  # type: ignore[misc]
        """Keeps a token while it is good; aiokafka asks once for each connection."""

        def __init__(self) -> None:
            self._lock = asyncio.Lock()
            self._token: Token | None = None

        async def token(self) -> str:
            async with self._lock:
                token = self._token
                if token is None or token.expires_at is None or token.expires_at - EARLY_SECONDS < time.time():
                    token = self._token = await self._fetch()
                return token.text

        async def _fetch(self) -> Token:
            try:
                return await fetch()
            except SourceUnavailable as error:
                raise TokenRefused(str(error)) from error
            except Exception as error:
                raise ConnectionError(f"{where}: no token can be had: {error_text(error)}") from error

        def extensions(self) -> dict[str, str]:
            return {} if self._token is None else dict(self._token.extensions)

    return Provider()


def from_function(path: str, config: str, where: str) -> Fetch:
    """Tokens from a user's function, as confluent-kafka calls it: it takes the text of ``sasl.oauthbearer.config`` and
    returns the token and when it expires, in seconds since the epoch, or these two, a principal and extensions. It may
    be asynchronous; else it runs in a thread.

    Whoever may edit a connection must not thereby choose code to run: as in the official provider, the path has to
    stand in ``[apache_kafka] callback_allowlist``.
    """
    from airflow.configuration import conf

    allowed = {name.strip() for name in conf.get("apache_kafka", "callback_allowlist", fallback="").split(",")}
    if path not in allowed:
        raise SourceUnavailable(
            f"{where}: oauth_cb={path!r} is not allowed. Put it into [apache_kafka] callback_allowlist in Airflow's "
            "configuration."
        )
    module, _, name = path.rpartition(".")
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SourceUnavailable(f"{where}: oauth_cb={path!r} can't be imported: {error}") from error

    async def fetch() -> Token:
        if inspect.iscoroutinefunction(function):
            made = await function(config)
        else:
            made = await asyncio.to_thread(function, config)
        if isinstance(made, str):
            return Token(made)
        return Token(str(made[0]), float(made[1]), made[3] if len(made) > 3 else {})

    return fetch


def by_openid_connect(extra: Mapping[str, Any], where: str) -> Fetch:
    """Tokens by the client credentials grant, from librdkafka's keys."""
    prefix = "sasl.oauthbearer."

    def required(*names: str) -> str:
        for name in names:
            if value := extra.get(prefix + name):
                return str(value)
        raise SourceUnavailable(f"{where}: {prefix}{names[0]} is missing, which sasl.oauthbearer.method=oidc needs.")

    url = required("token.endpoint.url")
    client = required("client.id", "client.credentials.client.id")
    secret = required("client.secret", "client.credentials.client.secret")
    if (grant := extra.get(prefix + "grant.type", "client_credentials")) != "client_credentials":
        raise SourceUnavailable(f"{where}: {prefix}grant.type={grant!r}: expected client_credentials.")
    form = {"grant_type": "client_credentials"}
    if scope := extra.get(prefix + "scope"):
        form["scope"] = str(scope)
    pairs = (pair.partition("=") for pair in str(extra.get(prefix + "extensions") or "").split(",") if pair)
    extensions = {name.strip(): value.strip() for name, _, value in pairs}
    authority, pem = extra.get("https.ca.location"), extra.get("https.ca.pem")
    try:
        trust = ssl.create_default_context(cafile=authority if authority != "probe" else None, cadata=pem)
    except OSError as error:
        raise SourceUnavailable(f"{where}: https.ca.location or https.ca.pem can't be used: {error}") from error

    async def fetch() -> Token:
        import httpx

        async with httpx.AsyncClient(timeout=20.0, verify=trust) as http:
            answer = await http.post(url, data=form, auth=(client, secret))
        if answer.status_code in (400, 401, 403):
            raise SourceUnavailable(f"{where}: {url} refuses a token for client {client!r}: {answer.text[:200]}")
        answer.raise_for_status()
        said = answer.json()
        seconds = said.get("expires_in")
        return Token(str(said["access_token"]), None if seconds is None else time.time() + float(seconds), extensions)

    return fetch


def for_amazon_msk(region: str, where: str) -> Fetch:
    """Tokens for Amazon MSK with IAM, signed with the AWS credentials of the environment."""
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
    except ImportError as error:
        raise SourceUnavailable(
            f"{where}: Amazon MSK needs a signer: install airflow-provider-sharedstream[kafka-msk]"
        ) from error

    async def fetch() -> Token:
        # It may ask the instance's metadata service, and not asynchronously.
        token, expires_at_ms = await asyncio.to_thread(MSKAuthTokenProvider.generate_auth_token, region)
        return Token(token, expires_at_ms / 1000)

    return fetch


def for_google_managed_kafka(where: str) -> Fetch:
    """Tokens for Google Managed Kafka, of the application default credentials."""
    try:
        import google.auth
        import google.auth.exceptions
        import google.auth.transport.requests
    except ImportError as error:
        raise SourceUnavailable(
            f"{where}: Google Managed Kafka needs Google's credentials: install "
            "airflow-provider-sharedstream[kafka-google]"
        ) from error

    def fetch_now() -> Token:
        try:
            credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
            credentials.refresh(google.auth.transport.requests.Request())
        except (google.auth.exceptions.DefaultCredentialsError, google.auth.exceptions.RefreshError) as error:
            raise SourceUnavailable(f"{where}: Google gives no token: {error}") from error
        return google_token(credentials)

    async def fetch() -> Token:
        return await asyncio.to_thread(fetch_now)

    return fetch


def google_token(credentials: Any) -> Token:
    """Return an access token as Google's brokers want it: in the shape of a JWT that says whose it is.

    :param credentials: refreshed; with ``token``, ``expiry`` (UTC, without a zone) and ``service_account_email``.
    """
    expires_at = credentials.expiry.replace(tzinfo=timezone.utc).timestamp()
    header = {"typ": "JWT", "alg": "GOOG_OAUTH2_TOKEN"}
    claims = {
        "exp": expires_at,
        "iat": time.time(),
        "iss": "Google",
        "scope": "kafka",
        "sub": credentials.service_account_email,
    }
    parts = (json.dumps(header), json.dumps(claims), credentials.token)
    encoded = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return Token(encoded, expires_at)

"""From a ``google_cloud_platform`` connection to credentials.

google-auth makes them of the connection's own fields; the official Google provider isn't needed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

DEFAULT_CONN_ID = "google_cloud_default"
DEFAULT_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)

KINDS = ("key_path", "keyfile_dict", "credential_config_file", "key_secret_name", "is_anonymous", "idp_issuer_url")
"""Fields of which a connection has one at most; with none it stands for the application default credentials."""
TOO_LEAN = ("key_secret_name", "idp_issuer_url")


class GoogleAccess(NamedTuple):
    """Who calls, and for which project if nobody says otherwise."""

    credentials: Any
    """Of google-auth; None where none are needed."""
    project: str | None


async def google_access(
    gcp_conn_id: str | None, impersonation_chain: str | Sequence[str] | None = None, *, needs_credentials: bool = True
) -> GoogleAccess:
    """Return what a connection stands for, its credentials proved by fetching a token.

    :param gcp_conn_id: the Airflow connection; None, or no ``google_cloud_default``: application default credentials.
    :param impersonation_chain: the service account to act as, behind those that lead to it; goes before the
        connection's.
    :param needs_credentials: False for an emulator, which asks for none.
    :raises SourceUnavailable: the connection is missing or doesn't lead to credentials; the text says what to change.
    """
    connection = await connection_of("gcp_conn_id", gcp_conn_id, "google_cloud_platform") if gcp_conn_id else None
    if connection is None and gcp_conn_id not in (None, DEFAULT_CONN_ID):
        raise missing("gcp_conn_id", str(gcp_conn_id))
    fields = Fields(connection.extra_dejson if connection is not None else {})
    if not needs_credentials:
        return GoogleAccess(None, fields.text("project"))
    where = f"gcp_conn_id={gcp_conn_id!r}"
    chain = _names(impersonation_chain) or _names(fields.get("impersonation_chain"))
    # Files, a metadata server, a token endpoint: all of google-auth waits for them without asyncio.
    return await asyncio.to_thread(_access, fields, chain, where)


async def refusal_of(credentials: Any) -> str | None:
    """Return why credentials give no token although somebody asks for one; None where that may go away by itself."""
    from google.auth.exceptions import GoogleAuthError, RefreshError

    try:
        await asyncio.to_thread(_prove, credentials)
    except RefreshError as error:
        return None if error.retryable else f"Google gives no token for these credentials: {error}"
    except GoogleAuthError:
        return None
    return None


class Fields:
    """The fields of a connection's extra, under either of their two names; an empty one counts as absent."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        self._extra = extra

    def get(self, name: str) -> Any:
        for key in (name, f"extra__google_cloud_platform__{name}"):
            if self._extra.get(key) not in (None, "", False):
                return self._extra[key]
        return None

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return None if value is None else str(value)


def _access(fields: Fields, chain: Sequence[str], where: str) -> GoogleAccess:
    from google.auth.exceptions import DefaultCredentialsError, MalformedError, RefreshError

    try:
        credentials, project = _credentials(fields, where)
        if chain:
            credentials = _acting_as(credentials, chain, _scopes(fields))
        _prove(credentials)
    except SourceUnavailable:
        raise
    except (MalformedError, ValueError) as error:
        raise SourceUnavailable(f"{where}: these are no usable credentials: {error}") from error
    except DefaultCredentialsError as error:
        raise SourceUnavailable(
            f"{where}: no credentials. Give the connection key_path or keyfile_dict, or the triggerer application "
            f"default credentials (GOOGLE_APPLICATION_CREDENTIALS, or a service account of its own). {error}"
        ) from error
    except RefreshError as error:
        if error.retryable:
            raise
        act = f" to act as {chain[-1]!r} (impersonation_chain)" if chain else ""
        raise SourceUnavailable(f"{where}: Google gives no token for these credentials{act}: {error}") from error
    except OSError as error:
        raise SourceUnavailable(f"{where}: the credentials can't be read: {error}") from error
    return GoogleAccess(credentials, fields.text("project") or project)


def _credentials(fields: Fields, where: str) -> tuple[Any, str | None]:
    import google.auth
    from google.oauth2 import service_account

    given = [kind for kind in KINDS if fields.get(kind) is not None]
    if len(given) > 1:
        raise SourceUnavailable(f"{where}: {' and '.join(given)} exclude each other; keep one of them")
    kind = given[0] if given else None
    value = None if kind is None else fields.get(kind)
    scopes = _scopes(fields)
    if kind in TOO_LEAN:
        raise SourceUnavailable(
            f"{where}: {kind} is the official Google provider's; use key_path, keyfile_dict, credential_config_file "
            "or application default credentials"
        )
    if kind == "key_path":
        made = service_account.Credentials.from_service_account_file(str(value), scopes=scopes)
        return made, made.project_id
    if kind == "keyfile_dict":
        info = _as_dict(value, kind, where)
        # A key that went through an environment variable has its line ends spelled out.
        info = {**info, "private_key": str(info.get("private_key", "")).replace("\\n", "\n")}
        made = service_account.Credentials.from_service_account_info(info, scopes=scopes)
        return made, made.project_id
    if kind == "credential_config_file":
        return _configured(value, scopes, where)
    if kind == "is_anonymous":
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials(), None
    credentials, project = google.auth.default(scopes=scopes)
    return credentials, project


def _configured(value: Any, scopes: Sequence[str], where: str) -> tuple[Any, str | None]:
    """Return the credentials of a configuration for workload identity federation: a path, JSON, or a dict."""
    from google.auth import aws, identity_pool, pluggable

    if isinstance(value, str) and not value.lstrip().startswith("{"):
        with open(value, encoding="utf-8") as file:
            value = file.read()
    info = _as_dict(value, "credential_config_file", where)
    if info.get("type") != "external_account":
        raise SourceUnavailable(
            f"{where}: credential_config_file is expected to be of type 'external_account', not {info.get('type')!r}; "
            "the key of a service account belongs in key_path or keyfile_dict"
        )
    source = info.get("credential_source")
    source = source if isinstance(source, Mapping) else {}
    # google-auth tells them apart in the same way, but warns of its function that does it.
    make: Callable[..., Any] = identity_pool.Credentials.from_info
    if "executable" in source:
        make = pluggable.Credentials.from_info
    elif str(info.get("subject_token_type", "")).startswith("urn:ietf:params:aws:"):
        make = aws.Credentials.from_info
    return make(info, scopes=scopes), None


def _acting_as(credentials: Any, chain: Sequence[str], scopes: Sequence[str]) -> Any:
    from google.auth import impersonated_credentials

    return impersonated_credentials.Credentials(
        source_credentials=credentials,
        target_principal=chain[-1],
        delegates=list(chain[:-1]),
        target_scopes=list(scopes),
    )


def _prove(credentials: Any) -> None:
    """Fetch a token now: later, gRPC reports a refused one as a server that is away."""
    from google.auth.credentials import AnonymousCredentials
    from google.auth.transport.requests import Request

    if not isinstance(credentials, AnonymousCredentials) and not credentials.valid:
        credentials.refresh(Request())
        # On Google's own machines this asks their metadata server, and the client would do it inside the event loop.
        _ = credentials.universe_domain


def _scopes(fields: Fields) -> Sequence[str]:
    return _names(fields.get("scope")) or list(DEFAULT_SCOPES)


def _names(value: Any) -> list[str]:
    parts = value.split(",") if isinstance(value, str) else value or ()
    return [name for part in parts if (name := str(part).strip())]


def _as_dict(value: Any, field: str, where: str) -> Mapping[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise SourceUnavailable(f"{where}: {field} is not JSON: {error}") from error
    if not isinstance(value, Mapping):
        raise SourceUnavailable(f"{where}: {field} is expected to be a JSON object, not {type(value).__name__}")
    return value

"""From an ``aws`` connection to a client.

Where the official Amazon provider is installed, its hook makes the session, so that every authentication that it
knows works. In a lean install aioboto3 does, with the connection's static keys, profile, or role.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_sharedstream.connections.lookup import connection_of, missing
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

log = logging.getLogger(__name__)

DEFAULT_CONN_ID = "aws_default"

REGION_IN_HOST = re.compile(r"(?:^|\.)(?:sqs(?:-fips)?\.)?((?:[a-z]{2,4}-)+[a-z]+-\d+)\.")
"""``sqs.eu-west-1.amazonaws.com``, ``vpce-x.sqs.us-gov-west-1.vpce.amazonaws.com``,
``us-east-2.queue.amazonaws.com``.
"""


def region_of(url: str) -> str | None:
    """Return the region that an AWS service's address names, or None."""
    found = REGION_IN_HOST.search(urlsplit(url).hostname or "")
    return found.group(1) if found else None


async def aws_client(
    service: str,
    aws_conn_id: str | None,
    region_name: str | None,
    *,
    endpoint_url: str | None,
    read_timeout_seconds: float,
) -> AbstractAsyncContextManager[Any]:
    """Return a client, to be entered.

    :param service: ``sqs``.
    :param aws_conn_id: the Airflow connection; None: the SDK's own chain of credentials.
    :param region_name: goes before the connection's.
    :param endpoint_url: used where the connection names no endpoint.
    :param read_timeout_seconds: longest silence of the server.
    :raises SourceUnavailable: the connection is missing or asks for something that this install can't do.
    """
    connection = await connection_of("aws_conn_id", aws_conn_id, "aws") if aws_conn_id else None
    if connection is None and aws_conn_id not in (None, DEFAULT_CONN_ID):
        raise missing("aws_conn_id", str(aws_conn_id))
    make = _with_amazon_provider if _amazon_provider_is_installed() else _with_aioboto3
    try:
        from botocore.config import Config

        # The machine retries, so that every failure is seen, counted and slowed down in one place.
        config = Config(
            retries={"total_max_attempts": 1},
            connect_timeout=10,
            read_timeout=read_timeout_seconds,
            max_pool_connections=32,
            tcp_keepalive=True,
        )
        client: AbstractAsyncContextManager[Any] = await make(
            service, aws_conn_id, connection, region_name, endpoint_url, config
        )
    except ImportError as error:
        raise SourceUnavailable(
            f"the AWS client is not installed ({error}); install airflow-provider-sharedstream[sqs], "
            "or [amazon] beside the official Amazon provider"
        ) from error
    return client


def _amazon_provider_is_installed() -> bool:
    try:
        return importlib.util.find_spec("airflow.providers.amazon.aws.hooks.base_aws") is not None
    except ModuleNotFoundError:
        return False


async def _with_amazon_provider(
    service: str, conn_id: str | None, connection: Any, region_name: str | None, endpoint_url: str | None, config: Any
) -> Any:
    import aiobotocore.session  # noqa: F401  # the hook needs it, and is less clear about it
    from airflow.providers.amazon.aws.hooks.base_aws import AwsBaseHook

    class Hook(AwsBaseHook):  # type: ignore[misc]
        """The official hook on a connection that was looked up already, since its own look-up would block."""

        def get_connection(self, conn_id: str) -> Any:
            return connection

    hook = Hook(aws_conn_id=conn_id if connection is not None else None, client_type=service, region_name=region_name)

    def session() -> Any:
        return hook.get_session(region_name=hook.region_name, deferrable=True)

    # It may call STS, and not asynchronously.
    made = await asyncio.to_thread(session)
    return made.create_client(
        service,
        region_name=hook.region_name or region_of(endpoint_url or ""),
        endpoint_url=hook.conn_config.get_service_endpoint_url(service_name=service) or endpoint_url,
        config=hook.config.merge(config),
        verify=hook.verify,
    )


async def _with_aioboto3(
    service: str, conn_id: str | None, connection: Any, region_name: str | None, endpoint_url: str | None, config: Any
) -> Any:
    import aioboto3
    from botocore.config import Config

    extra = connection.extra_dejson if connection is not None else {}
    known = extra.get("service_config", {}).get(service, {})
    endpoint_url = known.get("endpoint_url") or extra.get("endpoint_url") or endpoint_url
    region_name = region_name or known.get("region_name") or extra.get("region_name") or region_of(endpoint_url or "")
    session_kwargs = {
        "aws_access_key_id": (connection and connection.login) or extra.get("aws_access_key_id"),
        "aws_secret_access_key": (connection and connection.password) or extra.get("aws_secret_access_key"),
        "aws_session_token": extra.get("aws_session_token"),
        "profile_name": extra.get("profile_name") or extra.get("session_kwargs", {}).get("profile_name"),
    }
    session_kwargs = {name: value for name, value in session_kwargs.items() if value}
    session = aioboto3.Session(region_name=region_name, **session_kwargs)
    if role_arn := extra.get("role_arn"):
        session = _assuming(aioboto3, session, str(role_arn), extra, region_name)
    elif extra.get("assume_role_method"):
        raise _too_lean(conn_id, "assume_role_method")
    return session.client(
        service,
        endpoint_url=endpoint_url,
        config=Config(**extra.get("config_kwargs", {})).merge(config),
        verify=extra.get("verify"),
    )


def _assuming(aioboto3: Any, base: Any, role_arn: str, extra: dict[str, Any], region_name: str | None) -> Any:
    """Return a session whose credentials are those of the role, renewed before they run out."""
    from aiobotocore.credentials import AioAssumeRoleCredentialFetcher, AioDeferredRefreshableCredentials
    from aiobotocore.session import AioSession

    if extra.get("assume_role_method", "assume_role") != "assume_role":
        raise _too_lean(None, f"assume_role_method={extra['assume_role_method']!r}")
    more = dict(extra.get("assume_role_kwargs", {}))
    if external_id := extra.get("external_id"):
        more["ExternalId"] = external_id

    class Source:
        """The base session's credentials, in the shape that the fetcher asks for them."""

        async def get_frozen_credentials(self) -> Any:
            credentials = await base.get_credentials()
            if credentials is None:
                raise SourceUnavailable("no AWS credentials with which to assume " + role_arn)
            return await credentials.get_frozen_credentials()

    fetcher = AioAssumeRoleCredentialFetcher(
        client_creator=base._session.create_client, source_credentials=Source(), role_arn=role_arn, extra_args=more
    )
    inner = AioSession()
    inner._credentials = AioDeferredRefreshableCredentials(
        method="assume-role", refresh_using=fetcher.fetch_credentials
    )
    return aioboto3.Session(botocore_session=inner, region_name=region_name)


def _too_lean(conn_id: str | None, what: str) -> SourceUnavailable:
    where = "the AWS connection" if conn_id is None else f"aws_conn_id={conn_id!r}"
    return SourceUnavailable(
        f"{where}: {what} needs the official Amazon provider: "
        "install airflow-provider-sharedstream[amazon] instead of [sqs]"
    )

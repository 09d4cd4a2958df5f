"""Finding an Airflow connection from inside the triggerer's event loop."""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_sharedstream.stream.errors import SourceUnavailable, error_text

log = logging.getLogger(__name__)


async def connection_of(argument: str, conn_id: str, conn_type: str) -> Any:
    """Return the connection, or None where there is none of that name.

    :param argument: the trigger's argument that names it, for the message.
    :param conn_id: its id.
    :param conn_type: its type. Another one is warned of: what fails then fails for what the other one lacks.
    :raises SourceUnavailable: it can't be looked up at all.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        # The synchronous call fails inside a producer, with a misleading text.
        connection = await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        return None
    except Exception as error:
        text = f"{argument}={conn_id!r}: the connection can't be looked up: {error_text(error)}"
        raise SourceUnavailable(text) from error
    if connection.conn_type not in (conn_type, "generic", "", None):
        log.warning("%s=%r is a connection of type %r, expected %r", argument, conn_id, connection.conn_type, conn_type)
    return connection


def missing(argument: str, conn_id: str) -> SourceUnavailable:
    """Return the error for a connection that isn't there."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    return SourceUnavailable(
        f"{argument}={conn_id!r}: there is no such connection. "
        f"Create it (Admin, Connections, or {variable}), or name another."
    )

"""Finding an Airflow connection from inside the triggerer's event loop."""

from __future__ import annotations

from typing import Any

from airflow_provider_sharedstream.stream.errors import SourceUnavailable


async def connection_of(argument: str, conn_id: str) -> Any:
    """Return the connection, or None where there is none of that name.

    :param argument: the trigger's argument that names it, for the message.
    :param conn_id: its id.
    :raises SourceUnavailable: it can't be looked up at all.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        # The synchronous call fails inside a producer, with a misleading text.
        return await BaseHook.aget_connection(conn_id)
    except AirflowNotFoundException:
        return None
    except Exception as error:
        text = f"{argument}={conn_id!r}: the connection can't be looked up: {error}"
        raise SourceUnavailable(text) from error


def missing(argument: str, conn_id: str) -> SourceUnavailable:
    """Return the error for a connection that isn't there."""
    variable = f"AIRFLOW_CONN_{conn_id.upper()}"
    return SourceUnavailable(
        f"{argument}={conn_id!r}: there is no such connection. "
        f"Create it (Admin, Connections, or {variable}), or name another."
    )

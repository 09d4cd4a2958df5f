"""Airflow's asset state store, from inside the triggerer."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_provider_sharedstream.stream.errors import SharedStreamError


class StateStore(Protocol):
    """Keeps JSON values of assets."""

    async def read(self, asset: str, key: str) -> Any:
        """Return the value, or None where there is none.

        :raises StateStoreTrouble: the store can't be reached.
        """

    async def write(self, asset: str, key: str, value: Any) -> None:
        """Set the value.

        :raises AssetGone: the asset takes no values any more.
        :raises StateStoreTrouble: the store can't be reached.
        """


class AssetGone(SharedStreamError):
    """The asset is no longer declared by any Dag."""


class StateStoreTrouble(SharedStreamError):
    """Airflow's state store could not be reached."""

    def __init__(self, asset: str, error: BaseException) -> None:
        super().__init__(f"the state store of asset {asset!r} can't be reached: {type(error).__name__}: {error}")


class AirflowStateStore:
    """The store of Airflow 3.3. A call takes 30 to 75 ms, and the triggerer makes one after another."""

    async def read(self, asset: str, key: str) -> Any:
        from airflow.sdk.execution_time.context import AssetStateStoreAccessor

        try:
            return await AssetStateStoreAccessor(name=asset).aget(key)
        except Exception as error:
            raise StateStoreTrouble(asset, error) from error

    async def write(self, asset: str, key: str, value: Any) -> None:
        from airflow.sdk.exceptions import AirflowRuntimeError
        from airflow.sdk.execution_time.context import AssetStateStoreAccessor

        try:
            await AssetStateStoreAccessor(name=asset).aset(key, value)
        except Exception as error:
            if isinstance(error, AirflowRuntimeError) and (error.error.detail or {}).get("status_code") == 404:
                raise AssetGone(f"asset {asset!r} is not declared by any Dag") from error
            raise StateStoreTrouble(asset, error) from error


def airflow_state_store() -> StateStore | None:
    """Return the store, or None outside a triggerer."""
    try:
        from airflow.sdk.execution_time import task_runner
    except ImportError:
        return None
    return AirflowStateStore() if getattr(task_runner, "SUPERVISOR_COMMS", None) is not None else None

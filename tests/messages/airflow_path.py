"""The way of a payload from a filter to a task, through Airflow's own classes, without its processes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import sqlalchemy
from airflow.api_fastapi.execution_api.datamodels.taskinstance import AssetEventDagRunReference as ServedEvent
from airflow.jobs.triggerer_job_runner import ToTriggerSupervisor, TriggerEventEntry
from airflow.jobs.triggerer_job_runner import messages as runner_messages
from airflow.sdk import Asset
from airflow.sdk.api.datamodels._generated import TIRunContext
from airflow.sdk.execution_time.comms import (
    AssetEventDagRunReferenceResult,
    _new_encoder,
    _RequestFrame,
    _ResponseFrame,
)
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor
from airflow.triggers.base import TriggerEvent
from pydantic import TypeAdapter

from_runner: TypeAdapter[Any] = TypeAdapter(ToTriggerSupervisor)
MOMENT = "2026-01-31T12:00:00.000000+00:00"
Store = Callable[[str], str]


def in_memory(text: str) -> str:
    return text.encode("utf-8").decode("utf-8")


def in_database(engine: sqlalchemy.Engine) -> Store:
    """A store that puts JSON into a column of the type of ``asset_event.extra`` and reads it back as text."""
    kept = sqlalchemy.Table("kept", sqlalchemy.MetaData(), sqlalchemy.Column("extra", sqlalchemy.JSON()))
    kept.metadata.create_all(engine)

    def store(text: str) -> str:
        with engine.begin() as connection:
            connection.execute(kept.delete())
            connection.execute(kept.insert().values(extra=json.loads(text)))
            return json.dumps(connection.execute(sqlalchemy.select(kept.c.extra)).scalar_one())

    return store


def supervised(event: TriggerEvent) -> TriggerEvent:
    """Return what the triggerer's supervisor makes of an event that its runner sends."""
    _new_encoder().encode(event)  # the runner's own check, before it sends
    changes = runner_messages.TriggerStateChanges(events=[TriggerEventEntry(7, event, 1)])
    frame = bytes(_RequestFrame(id=1, body=changes.model_dump()).as_bytes())[4:]
    received = from_runner.validate_python(msgspec.msgpack.Decoder(_RequestFrame).decode(frame).body)
    made: TriggerEvent = received.events[0].event
    return made


def as_triggering(extra: Any, *, name: str = "orders") -> TriggeringAssetEventsAccessor:
    """Return ``triggering_asset_events`` as a task gets it when one stored event started its run."""
    asset = Asset(name)
    event = {
        "asset": {"name": asset.name, "uri": asset.uri, "extra": {}},
        "extra": extra,
        "source_task_id": None,
        "source_dag_id": None,
        "source_run_id": None,
        "source_map_index": None,
        "source_aliases": [],
        "timestamp": MOMENT,
    }
    served = ServedEvent.model_validate(event).model_dump_json()
    context = TIRunContext.model_validate_json(_run_context(served))
    frame = bytes(_ResponseFrame(id=1, body={"context": context.model_dump(exclude_unset=True)}).as_bytes())[4:]
    body = msgspec.msgpack.Decoder(_ResponseFrame).decode(frame).body
    assert body is not None
    started = TIRunContext.model_validate(body["context"])
    TIRunContext.model_validate_json(started.model_dump_json())  # as on a re-exec as another user
    return TriggeringAssetEventsAccessor.build(
        AssetEventDagRunReferenceResult.from_asset_event_dag_run_reference(event)
        for event in started.dag_run.consumed_asset_events
    )


def as_a_task_sees(event: TriggerEvent, store: Store = in_memory) -> TriggeringAssetEventsAccessor:
    """Send ``event`` all the way."""
    stored = json.dumps({"from_trigger": True, "payload": supervised(event).payload})
    return as_triggering(json.loads(store(stored)))


def _run_context(event: str) -> str:
    run: dict[str, Any] = {
        "dag_id": "handle_orders",
        "run_id": "r",
        "logical_date": None,
        "data_interval_start": None,
        "data_interval_end": None,
        "run_after": MOMENT,
        "start_date": MOMENT,
        "end_date": None,
        "clear_number": 0,
        "run_type": "asset_triggered",
        "state": "running",
        "conf": {},
        "triggering_user_name": None,
        "consumed_asset_events": "EVENTS",
        "partition_key": None,
        "partition_date": None,
        "note": None,
        "team_name": None,
    }
    context = {
        "dag_run": run,
        "task_reschedule_count": 0,
        "max_tries": 0,
        "variables": [],
        "connections": [],
        "should_retry": False,
    }
    return json.dumps(context).replace('"EVENTS"', f"[{event}]")

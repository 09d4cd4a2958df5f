"""Every trigger class that the package has, and arguments to try them with."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from typing import Any

from airflow_provider_sharedstream import triggers
from airflow_provider_sharedstream.triggers.arguments import Argument
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

Trigger = type[BrokerEventTrigger]


def existing() -> list[Trigger]:
    """The classes in all modules of the package, in alphabetical order."""
    found: set[Trigger] = set()
    for module in pkgutil.walk_packages(triggers.__path__, f"{triggers.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and issubclass(value, BrokerEventTrigger) and value.__module__ == module.name:
                found.add(value)
    return sorted(found - {BrokerEventTrigger}, key=lambda one: one.__name__)


CLASSES = existing()

SMALLEST: dict[str, dict[str, Any]] = {
    "DirectoryFileDeleteTrigger": {"directory": "/data/in", "pattern": "*.csv"},
    "KafkaSharedStreamTrigger": {"topics": ["orders"], "group_id": "airflow"},
    "PubSubSharedStreamTrigger": {"project_id": "my-project", "subscription": "orders"},
    "RestPollTrigger": {"endpoint": "https://example.com/items"},
    "ServiceBusSharedStreamTrigger": {"queue_name": "orders"},
    "SqsSharedStreamTrigger": {"sqs_queue": "orders"},
}
"""The fewest arguments of each class that are valid. A class that isn't here fails the tests: add it."""

LARGEST: dict[str, dict[str, Any]] = {
    "DirectoryFileDeleteTrigger": {
        "directory": "/data/in",
        "filename": "orders.csv",
        "archive_directory": "/data/done",
        "rejected_directory": "/data/bad",
        "recursive": True,
        "ignore": ["*.lock"],
        "content_up_to_bytes": 1000,
        "on_unmatched": "dead_letter",
    },
    "KafkaSharedStreamTrigger": {
        "topics": ["refunds", "orders"],
        "group_id": "airflow",
        "auto_offset_reset": "earliest",
        "dead_letter_topic": "bad",
    },
    "PubSubSharedStreamTrigger": {
        "project_id": "my-project",
        "subscription": "orders",
        "impersonation_chain": ["a@x.iam.gserviceaccount.com", "b@x.iam.gserviceaccount.com"],
        "dead_letter_topic": "bad",
        "ack_deadline_seconds": 30,
    },
    "RestPollTrigger": {
        "endpoint": "https://example.com/items",
        "method": "POST",
        "headers": {"Accept": "application/json", "X-Zone": "eu"},
        "params": {"size": 10, "kind": ["a", "b"]},
        "data": {"z": 1, "a": [1, {"y": 2, "b": None}]},
        "items_path": "items",
        "id_path": "id",
        "next_page": {"token": "next", "param": "page"},
        "allowed_hosts": ["cdn.example.com"],
    },
    "ServiceBusSharedStreamTrigger": {
        "topic_name": "orders",
        "subscription_name": "airflow",
        "session_enabled": True,
        "max_concurrent_sessions": 3,
    },
    "SqsSharedStreamTrigger": {
        "sqs_queue": "https://sqs.eu-west-1.amazonaws.com/123456789012/orders.fifo",
        "aws_conn_id": None,
        "wait_time_seconds": 5,
        "visibility_timeout": 60,
        "dead_letter_queue": "bad.fifo",
    },
}

COMMON: dict[str, Any] = {
    "match": {"headers.type": ["order", "refund"], "body.region": "eu"},
    "apply_function": "tests.triggers.classes.anything",
    "apply_timeout_seconds": 5,
    "decode": "json",
    "unwrap": ["sns"],
    "on_error": "release",
    "reject_quorum": "all",
    "max_deliveries": None,
    "release_delay_seconds": 1,
    "batch_size": 7,
    "batch_window_seconds": 0.25,
    "max_in_flight": 50,
}


def anything(message: Any) -> Any:
    return message.body


def smallest(trigger_class: Trigger, **more: Any) -> BrokerEventTrigger:
    return trigger_class(**{**SMALLEST[trigger_class.__name__], **more})


def largest(trigger_class: Trigger, **more: Any) -> BrokerEventTrigger:
    return trigger_class(**{**COMMON, **LARGEST[trigger_class.__name__], **more})


def another(argument: Argument, value: Any) -> Any:
    """A value of the kind that `argument` takes, other than `value`."""
    schema = argument.schema
    if "enum" in schema:
        return next(one for one in schema["enum"] if one != value)
    kinds = schema.get("type", "object")
    kinds = [kinds] if isinstance(kinds, str) else kinds
    for kind in kinds:
        if kind in ("integer", "number"):
            low, high = schema.get("minimum", schema.get("exclusiveMinimum", 0)), schema.get("maximum", 10**6)
            made: Any = low + (high - low) // 2 if kind == "integer" else (low + high) / 2
        elif kind == "boolean":
            made = not value
        elif kind == "string":
            made = "another.one"
        elif kind == "array":
            made = ["another"]
        elif kind == "object":
            made = {"another": "1"}
        else:
            continue
        if made != value:
            return made
    raise AssertionError(f"no other value than {value!r} for {json.dumps(dict(schema), default=str)}")

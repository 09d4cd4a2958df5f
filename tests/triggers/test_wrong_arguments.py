"""What somebody is told who writes a wrong argument: the whole text, for each argument of each trigger."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.triggers.arguments import COMMON, REQUIRED
from tests.triggers.classes import CLASSES, SMALLEST, Trigger

WRONG: list[Any] = [["x", 5], "", -1, 10**12]
"""Of a wrong type, empty, negative, too large."""

TEXT = "a text that isn't empty"
TEXTS = "texts that aren't empty"
PATH = "a dotted path such as 'package.module.function'"
DAY = "a number from 0.1 to 86,400"

EXPECTED: dict[str, dict[str, str]] = {
    "every trigger": {
        "match": "None, a JMESPath expression, or a dict",
        "apply_function": f"None, or {PATH}",
        "apply_timeout_seconds": "a number above 0 and up to 150",
        "decode": "'auto', 'json', 'text', 'bytes', 'schema_registry', or a dotted path",
        "unwrap": "an envelope's name such as 'sns', or a list of such names",
        "max_payload_bytes": "None, or a whole number that is at least 1,024",
        "on_oversize": "one of 'split', 'omit', 'reject'",
        "on_error": "one of 'reject', 'skip', 'release'",
        "dedupe_window_seconds": "None, or a number above 0 and up to 86,400",
        "dedupe_key": f"None, or {TEXT}",
        "dedupe_durable": "True or False",
        "max_age_seconds": "None, or a number above 0",
        "on_expired": "one of 'reject', 'accept'",
        "on_reject": "one of 'dead_letter', 'accept', 'release'",
        "reject_quorum": "one of 'any', 'all'",
        "on_unmatched": "one of 'accept', 'dead_letter', 'release'",
        "max_deliveries": "None, or a whole number that is at least 1",
        "release_delay_seconds": "a number from 0 to 900",
        "batch_size": "a whole number from 1 to 10,000",
        "batch_window_seconds": "a number from 0 to 60",
        "max_in_flight": "a whole number from 1 to 100,000",
    },
    "DirectoryFileDeleteTrigger": {
        "directory": TEXT,
        "filename": f"None, or {TEXT}",
        "pattern": f"None, or {TEXT}",
        "poke_interval": DAY,
        "settle_seconds": "a number that is at least 0",
        "archive_directory": f"None, or {TEXT}",
        "rejected_directory": f"None, or {TEXT}",
        "recursive": "True or False",
        "ignore": f"a list of {TEXTS}",
        "content_up_to_bytes": "a whole number from 0 to 1,048,576",
        "on_unmatched": "one of 'leave', 'accept', 'dead_letter'",
    },
    "KafkaSharedStreamTrigger": {
        "topics": f"a list of one or more {TEXTS}",
        "kafka_config_id": TEXT,
        "group_id": f"None, or {TEXT}",
        "auto_offset_reset": "one of None, 'earliest', 'latest', 'none'",
        "dead_letter_topic": f"None, or {TEXT}",
        "missing_topics": "one of 'fail', 'wait'",
    },
    "PubSubSharedStreamTrigger": {
        "project_id": f"None, or {TEXT}",
        "subscription": "a name such as 'orders' or 'projects/my-project/subscriptions/orders'",
        "gcp_conn_id": f"None, or {TEXT}",
        "impersonation_chain": f"None, {TEXT}, or a list of one or more {TEXTS}",
        "dead_letter_topic": "None, or a name such as 'rejected' or 'projects/my-project/topics/rejected'",
        "ack_deadline_seconds": "a whole number from 10 to 600",
        "endpoint": "None, or a host such as 'europe-west1-pubsub.googleapis.com', with or without a port",
    },
    "RestPollTrigger": {
        "endpoint": TEXT,
        "http_conn_id": f"None, or {TEXT}",
        "method": "one of 'GET', 'POST'",
        "headers": "None, or a dict of texts such as {'Accept': 'application/json'}",
        "params": "None, or a dict of texts, numbers or lists of them, such as {'size': 10}",
        "data": "None, a text, a list, or a dict",
        "poll_interval": DAY,
        "items_path": f"None, or {TEXT}",
        "id_path": f"None, or {TEXT}",
        "cursor_path": f"None, or {TEXT}",
        "cursor_param": f"None, or {TEXT}",
        "next_page": "None, 'link', 'none', 'cursor', or a dict",
        "first_poll": "one of 'all', 'new'",
        "max_pages": "a whole number from 1 to 10,000",
        "max_known_ids": "a whole number from 100 to 1,000,000",
        "timeout_seconds": "a number from 1 to 60",
        "max_response_bytes": "a whole number from 1,024 to 104,857,600",
        "allowed_hosts": f"a list of {TEXTS}",
        "auth_class": f"None, or {PATH}",
        "expect": "one of 'json', 'any'",
    },
    "ServiceBusSharedStreamTrigger": {
        "queue_name": f"None, or {TEXT}",
        "topic_name": f"None, or {TEXT}",
        "subscription_name": f"None, or {TEXT}",
        "azure_service_bus_conn_id": TEXT,
        "session_enabled": "True or False",
        "sub_queue": "one of None, 'deadletter', 'transferdeadletter'",
        "max_concurrent_sessions": "a whole number from 1 to 100",
    },
    "SqsSharedStreamTrigger": {
        "sqs_queue": TEXT,
        "aws_conn_id": f"None, or {TEXT}",
        "region_name": f"None, or {TEXT}",
        "wait_time_seconds": "a whole number from 0 to 20",
        "visibility_timeout": "None, or a whole number from 2 to 43,200",
        "dead_letter_queue": f"None, or {TEXT}",
    },
}

SECRET = {"headers", "params"}
"""Their values are not shown."""

OTHERWISE: dict[tuple[str, str], str] = {
    ("match", "''"): "match='': expected a JMESPath expression, or None for all messages",
    ("unwrap", "''"): "unwrap: there is no envelope '': expected one of sns, s3, eventbridge, cloudevents, eventgrid, "
    "debezium, kafka_connect, cloud_storage",
    ("next_page", "''"): "next_page='': expected None, 'link', 'none', 'cursor' with cursor_param, {'url': JMESPath}, "
    "{'token': JMESPath, 'param': name}, {'page': name} or {'offset': name}, the last two with 'first' and 'size', "
    "whole numbers, where needed; next_page='': without items_path the whole body is one item, of one page",
    ("data", "['x', 5]"): "data, method='GET': expected 'POST', with which data is sent",
    ("data", "''"): "data, method='GET': expected 'POST', with which data is sent",
    # One text is one topic.
    ("topics", "''"): f"topics=['']: expected a list of one or more {TEXTS}",
}
"""What is said of a value whose type is right."""

UNLIMITED = {"settle_seconds", "max_payload_bytes", "max_age_seconds", "max_deliveries"}
"""What no number is too large for."""


def refusal(trigger_class: Trigger, arguments: dict[str, Any]) -> str:
    with pytest.raises(InvalidArgument) as caught:
        trigger_class(**arguments).serialize()
    return str(caught.value)


def with_one(trigger_class: Trigger, name: str, value: Any) -> dict[str, Any]:
    return {**SMALLEST[trigger_class.__name__], name: value}


@pytest.mark.parametrize("trigger_class", CLASSES)
def test_a_wrong_value_is_told_with_its_name_and_what_is_expected(trigger_class: Trigger) -> None:
    expected = {**EXPECTED["every trigger"], **EXPECTED[trigger_class.__name__]}
    assert set(expected) == set(trigger_class.allowed_arguments())
    for name, words in expected.items():
        for value in WRONG:
            if name in UNLIMITED and value == 10**12:
                trigger_class(**with_one(trigger_class, name, value)).serialize()
                continue
            shown = name if name in SECRET else f"{name}={value!r}"
            text = OTHERWISE.get((name, repr(value)), f"{shown}: expected {words}")
            assert refusal(trigger_class, with_one(trigger_class, name, value)) == f"{trigger_class.__name__}: {text}"


@pytest.mark.parametrize("trigger_class", CLASSES)
def test_whoever_misspells_an_argument_is_told_its_name(trigger_class: Trigger) -> None:
    hinted = 0
    for name in trigger_class.allowed_arguments():
        misspelt = name[:-2] + name[-1] + name[-2]
        if misspelt == name:
            misspelt = name[:-1]
        text = refusal(trigger_class, with_one(trigger_class, misspelt, 5))
        start = f"{trigger_class.__name__}: {misspelt}=5: there is no such argument; "
        assert text.startswith(start)
        assert name in text.removeprefix(start)
        hinted += "did you mean " in text
    # From a name of four letters it is far to any other.
    assert hinted >= len(trigger_class.allowed_arguments()) - 1


@pytest.mark.parametrize(
    ("name", "written", "hint"),
    [
        ("SqsSharedStreamTrigger", "queue", "did you mean 'sqs_queue' or 'dead_letter_queue'?"),
        ("KafkaSharedStreamTrigger", "topic", "did you mean 'topics'?"),
        ("KafkaSharedStreamTrigger", "group", "did you mean 'group_id'?"),
        ("PubSubSharedStreamTrigger", "conn_id", "did you mean 'gcp_conn_id'?"),
        ("ServiceBusSharedStreamTrigger", "queue", "did you mean 'queue_name' or 'sub_queue'?"),
        ("RestPollTrigger", "path", "did you mean 'items_path' or 'id_path' or 'cursor_path'?"),
    ],
)
def test_a_part_of_a_name_leads_to_it(name: str, written: str, hint: str) -> None:
    (trigger_class,) = (one for one in CLASSES if one.__name__ == name)
    assert refusal(trigger_class, with_one(trigger_class, written, "x")).endswith(hint)


def test_a_name_that_is_near_none_is_answered_with_all() -> None:
    (directory,) = (one for one in CLASSES if one.__name__ == "DirectoryFileDeleteTrigger")
    assert refusal(directory, {"path": "/x", "pattern": "*"}) == (
        "DirectoryFileDeleteTrigger: directory is missing: expected a text that isn't empty, such as "
        "directory='/data/in'; path='/x': there is no such argument; there are directory, filename, pattern, "
        "poke_interval, settle_seconds, archive_directory, rejected_directory, recursive, ignore, "
        f"content_up_to_bytes, and those of every trigger: {', '.join(COMMON)}"
    )


@pytest.mark.parametrize("trigger_class", CLASSES)
def test_an_argument_that_is_missing_is_told_with_an_example_that_works(trigger_class: Trigger) -> None:
    required = {name: one for name, one in trigger_class.ARGUMENTS.items() if one.default is REQUIRED}
    text = refusal(trigger_class, {})
    for name, argument in required.items():
        assert f"{name} is missing: expected {EXPECTED[trigger_class.__name__][name]}, such as " in text
        assert f"{name}={argument.example!r}" in text
        trigger_class(**with_one(trigger_class, name, argument.example)).serialize()
    assert required or text == (
        "ServiceBusSharedStreamTrigger: queue_name=None, topic_name=None: expected queue_name, or topic_name with "
        "subscription_name"
    )

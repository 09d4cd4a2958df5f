"""`MessageQueueTrigger` of the common messaging provider makes this package's triggers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger

from airflow_provider_sharedstream.stream.errors import InvalidArgument
from tests.triggers.classes import CLASSES, SMALLEST, smallest
from tests.triggers.test_dag_files import parsed

SCHEMES = {
    "sharedstream+kafka": "KafkaSharedStreamTrigger",
    "sharedstream+pubsub": "PubSubSharedStreamTrigger",
    "sharedstream+servicebus": "ServiceBusSharedStreamTrigger",
    "sharedstream+sqs": "SqsSharedStreamTrigger",
}

DAG_FILE = """
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

trigger = MessageQueueTrigger(scheme={scheme!r}, **{arguments!r})

with DAG("orders", schedule=[Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])]):
    pass
"""


def queue_trigger(scheme: str, **arguments: Any) -> MessageQueueTrigger:
    return MessageQueueTrigger(scheme=scheme, **{**SMALLEST[SCHEMES[scheme]], **arguments})


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_stored_is_the_trigger_of_the_scheme(scheme: str) -> None:
    (trigger_class,) = (one for one in CLASSES if one.__name__ == SCHEMES[scheme])
    expected = smallest(trigger_class, match="body.region == 'eu'").serialize()
    assert queue_trigger(scheme, match="body.region == 'eu'").serialize() == expected


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_wrong_argument_is_told_as_ever(scheme: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"{SCHEMES[scheme]}: batch_sise=5: there is no such argument"):
        queue_trigger(scheme, batch_sise=5).serialize()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_dag_file_with_it_parses(scheme: str, tmp_path: Path) -> None:
    file = tmp_path / "orders.py"
    file.write_text(DAG_FILE.format(scheme=scheme, arguments=SMALLEST[SCHEMES[scheme]]))
    result = parsed(file)
    assert not result.import_errors
    (dag,) = result.serialized_dags
    assert SCHEMES[scheme] in json.dumps(dag.data)
    assert "MessageQueueTrigger" not in json.dumps(dag.data)

"""The trigger's arguments, and how they are stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.serialization.decoders import smart_decode_trigger_kwargs
from airflow.serialization.encoders import encode_trigger
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_sharedstream.brokers.directory.files import File
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.triggers.directory import DirectoryFileDeleteTrigger

GIVEN: list[dict[str, Any]] = [
    {"directory": "/data/in", "filename": "go.flag"},
    {"directory": Path("/data/in"), "pattern": "*.csv", "archive_directory": Path("/data/done")},
    {
        "directory": "/data/in/",
        "pattern": "2026/*.csv",
        "recursive": True,
        "poke_interval": 30,
        "settle_seconds": 0,
        "rejected_directory": "/data/rejected",
        "ignore": ("*.lock",),
        "content_up_to_bytes": 1000,
        "decode": "text",
        "match": {"attributes.size": [1, 2]},
        "on_unmatched": "accept",
        "batch_size": 1,
    },
    {"directory": "/däta/ïn", "filename": "grün €.csv"},
]


@pytest.mark.parametrize("given", GIVEN)
def test_it_survives_storage_with_an_equal_hash(given: dict[str, Any]) -> None:
    trigger = DirectoryFileDeleteTrigger(**given)
    classpath, kwargs = trigger.serialize()
    encoded = json.loads(json.dumps(encode_trigger(trigger)))
    assert encoded["classpath"] == classpath
    row = Trigger(classpath=classpath, kwargs=encoded["kwargs"])
    decoded = {name: smart_decode_trigger_kwargs(value) for name, value in row.kwargs.items()}
    again = DirectoryFileDeleteTrigger(**decoded)
    assert again.arguments == trigger.arguments
    assert again.serialize() == (classpath, kwargs)
    assert again.shared_stream_key() == trigger.shared_stream_key()
    hashes = {
        BaseEventTrigger.hash(classpath, kwargs),
        BaseEventTrigger.hash(classpath, encoded["kwargs"]),
        BaseEventTrigger.hash(classpath, row.kwargs),
        BaseEventTrigger.hash(*again.serialize()),
    }
    assert len(hashes) == 1


def test_what_one_watcher_wants_is_not_in_the_key() -> None:
    wishes: list[dict[str, Any]] = [
        {"filename": "a"},
        {"filename": "b"},
        {"pattern": "*.csv"},
        {"pattern": "*", "match": "body.size"},
    ]
    keys = {
        DirectoryFileDeleteTrigger(directory, **mine).shared_stream_key()
        for directory in ("/data/in", "/data/in/", "/data//in", Path("/data/in"), "/data/x/../in")
        for mine in wishes
    }
    assert len(keys) == 1
    assert DirectoryFileDeleteTrigger("/data/in", "a", poke_interval=1).shared_stream_key() not in keys


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, ["filename=None, pattern=None: expected one of the two"]),
        ({"filename": "a", "pattern": "b"}, ["filename='a', pattern='b': expected one of the two"]),
        ({"directory": "data/in", "filename": "a"}, ["directory='data/in'", "absolute"]),
        ({"directory": "", "filename": "a"}, ["directory=''", "text"]),
        ({"directory": 5, "filename": "a"}, ["directory=5", "text"]),
        ({"directory": b"/data", "filename": "a"}, ["directory=b'/data'", "text"]),
        ({"directory": "/da\0ta", "filename": "a"}, ["directory"]),
        ({"filename": 7}, ["filename=7", "text"]),
        ({"filename": "a/b"}, ["filename='a/b'", "recursive"]),
        ({"filename": ".hidden"}, ["'.hidden'", "ignore"]),
        ({"pattern": "*.tmp"}, ["'*.tmp'", "ignore"]),
        ({"pattern": "/in/*.csv"}, ["'/in/*.csv': expected a name; `directory` has the rest of the path"]),
        ({"filename": "/in/a", "recursive": True}, ["'/in/a': expected a name; `directory` has the rest of the path"]),
        ({"filename": "a", "poke_interval": 0}, ["poke_interval=0", "expected a number from 0.1 to 86,400"]),
        ({"filename": "a", "poke_interval": "5"}, ["poke_interval='5'", "number"]),
        ({"filename": "a", "settle_seconds": -1}, ["settle_seconds=-1"]),
        ({"filename": "a", "archive_directory": "done"}, ["archive_directory='done'", "absolute"]),
        ({"filename": "a", "archive_directory": "/data/in/"}, ["archive_directory", "itself"]),
        ({"filename": "a", "rejected_directory": "/data/in"}, ["rejected_directory", "itself"]),
        ({"filename": "a", "ignore": "*.tmp"}, ["ignore='*.tmp'", "list"]),
        ({"filename": "a", "ignore": [1]}, ["ignore=[1]", "text"]),
        ({"filename": "a", "content_up_to_bytes": 10**9}, ["content_up_to_bytes", "1,048,576"]),
        ({"filename": "a", "on_unmatched": "release"}, ["on_unmatched='release'", "'leave'"]),
        ({"filename": "a", "on_unmatched": "dead_letter"}, ["on_unmatched", "rejected_directory"]),
        ({"filename": "a", "decode": "text"}, ["decode='text'", "content_up_to_bytes"]),
        ({"filename": "a", "match": "body."}, ["match"]),
        ({"filename": "a", "arhive_directory": "/x"}, ["arhive_directory", "archive_directory"]),
    ],
)
def test_a_mistake_is_reported_when_the_dag_is_parsed(given: dict[str, Any], words: list[str]) -> None:
    trigger = DirectoryFileDeleteTrigger(**{"directory": "/data/in", **given})
    with pytest.raises(InvalidArgument) as caught:
        trigger.serialize()
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value).replace("match:", "") or "match" in given


@pytest.mark.parametrize("bad", [None, 5, "x", [], {}, 1.5, True, "\0"])
def test_neither_constructor_nor_factory_raise_on_what_was_stored(bad: Any) -> None:
    for name in DirectoryFileDeleteTrigger.ARGUMENTS:
        stored = {"directory": "/data/in", "filename": "a", name: bad, "of_the_future": 1}
        trigger = DirectoryFileDeleteTrigger(**stored)
        trigger.trigger_id = 1
        DirectoryFileDeleteTrigger.create_shared_stream_producer(stored)
        assert trigger.serialize()[1]["of_the_future"] == 1


def delivery(name: str) -> Delivery:
    return Delivery(id=name, body=None, handle=File(name, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("given", "ours", "others"),
    [
        ({"filename": "a.csv"}, ["a.csv"], ["A.csv", "a.csv.gz", "xa.csv", "a_csv", "sub/a.csv"]),
        ({"filename": "caf\\udce9.csv"}, ["caf\udce9.csv"], ["cafe.csv"]),
        ({"filename": "a[1]*.csv"}, ["a[1]*.csv"], ["a1x.csv"]),
        ({"pattern": "*.csv"}, ["a.csv", ".csv", "sub/a.csv", "new\nline.csv"], ["a.CSV", "a.csv\n", "a.csv.gz"]),
        ({"pattern": "report-[0-9][0-9].?sv"}, ["report-07.csv", "report-99.tsv"], ["report-7.csv", "report-0x.csv"]),
        ({"pattern": "2026/*.csv", "recursive": True}, ["2026/a.csv", "2026/01/a.csv"], ["2025/a.csv", "a.csv"]),
    ],
)
def test_which_files_are_a_watchers(given: dict[str, Any], ours: list[str], others: list[str]) -> None:
    trigger = DirectoryFileDeleteTrigger("/data/in", **given)
    own = trigger.own_deliveries([delivery(name) for name in ours + others])
    assert [one.id for one in own] == ours

"""Which watchers a stored Dag declares."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Declared(NamedTuple):
    """A watcher in a Dag, as Airflow stores the Dag.

    :param asset: name and
    :param uri: address of the asset.
    :param watcher: the watcher's name.
    :param classpath: its trigger's class.
    :param arguments: its trigger's arguments, encoded.
    """

    asset: str
    uri: str
    watcher: str
    classpath: str
    arguments: Mapping[str, Any]


def declared_watchers(data: Any) -> list[Declared]:
    """Return the watchers in a stored Dag, or in a part of one.

    Of several watchers of an asset with equal triggers Airflow makes one, with the name of the last.
    """
    found = {(one.asset, one.uri, one.classpath, json.dumps(one.arguments, sort_keys=True)): one for one in _walk(data)}
    return list(found.values())


def _walk(data: Any) -> Iterator[Declared]:
    if isinstance(data, Mapping):
        watchers = data.get("watchers")
        if isinstance(watchers, list) and "name" in data and "uri" in data:
            for watcher in watchers:
                trigger = watcher["trigger"]
                yield Declared(data["name"], data["uri"], watcher["name"], trigger["classpath"], trigger["kwargs"])
        for value in data.values():
            yield from _walk(value)
    elif isinstance(data, list):
        for value in data:
            yield from _walk(value)

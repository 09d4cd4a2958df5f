"""From the events that started a run to its messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from airflow_provider_sharedstream.stream.message import Message


class _Event(NamedTuple):
    """An asset event that is ours."""

    asset: str
    timestamp: datetime | None
    payload: Mapping[str, Any]


def messages(triggering_asset_events: Any, *, asset: Any = None) -> list[Message]:
    """Return the messages that started this run, in the order in which their events were stored.

    One run may get several events, of several assets, each with several messages, and a message may be in two events,
    since a broker repeats what it isn't sure was handled. So a message with the same id from the same source is
    returned once; where two assets' watchers made different bodies of one message, each body is returned.

    Events that aren't of this package's triggers (a click in the UI, a task's outlet) are ignored; a run without any of
    ours (a manual one, ``dag.test()``) has no messages.

    :param triggering_asset_events: the task's context variable of that name. A mapping of assets to events, or a
        list of events, works too.
    :param asset: only this asset's messages: an Asset, an alias, a reference, or a name or URI.
    """
    events = [event for event in _events(triggering_asset_events, asset) if event is not None]
    if all(event.timestamp is not None for event in events):
        # The execution API returns a run's events in no particular order.
        events.sort(key=lambda event: event.timestamp or datetime.min)
    seen: dict[tuple[Any, Any, str], list[tuple[str, Any]]] = {}
    found = []
    for event in events:
        for stored in event.payload["messages"]:
            message = Message.from_dict(stored)
            identity = (event.payload.get("source"), event.payload.get("stream"), message.id)
            earlier = seen.setdefault(identity, [])
            if any(event.asset == other or message.body == body for other, body in earlier):
                continue
            earlier.append((event.asset, message.body))
            found.append(message)
    return found


def _events(given: Any, asset: Any) -> Iterator[_Event | None]:
    if not given:
        return
    if isinstance(given, Mapping):
        for key in list(given):
            if asset is None or _is(key, asset):
                for event in given[key]:
                    yield _ours(event, key)
    elif isinstance(given, Iterable):
        for event in given:
            key = _field(event, "asset")
            if asset is None or _is(key, asset):
                yield _ours(event, key)


def _ours(event: Any, key: Any) -> _Event | None:
    extra = _field(event, "extra")
    if not isinstance(extra, Mapping):
        return None
    # Airflow puts what a trigger yields under "payload"; an event made through the REST API may carry it directly.
    payload: Any
    for payload in (extra.get("payload"), extra):
        if _is_payload(payload):
            timestamp = _field(event, "timestamp")
            # The same event stands under its asset and under its aliases; the event knows its asset.
            name = _name(_field(event, "asset") or key)
            return _Event(name, timestamp if isinstance(timestamp, datetime) else None, payload)
    return None


def _is_payload(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and "source" in value
        and isinstance(value.get("messages"), list)
        and all(isinstance(stored, Mapping) and "id" in stored for stored in value["messages"])
    )


def _is(key: Any, wanted: Any) -> bool:
    """Whether the key of a mapping (an Asset, an alias, a name) is what the caller asked for."""
    if isinstance(wanted, str):
        return wanted in (_field(key, "name"), _field(key, "uri"), key)
    name, uri = _field(wanted, "name"), _field(wanted, "uri")
    if name is None and uri is None:
        raise TypeError(f"asset: expected an Asset, an AssetAlias, a reference, a name or a URI, got {wanted!r}")
    if isinstance(key, str):
        return key in (name, uri)
    # A reference has one of the two, an alias a name and never a URI.
    same_name = name is None or name == _field(key, "name")
    same_uri = uri is None or uri == _field(key, "uri")
    return same_name and same_uri and _is_alias(key) == _is_alias(wanted)


def _is_alias(value: Any) -> bool:
    return type(value).__name__ == "AssetAlias"


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(_field(key, "name") or _field(key, "uri") or "")


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)

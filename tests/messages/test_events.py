from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import jinja2
import pytest
from airflow.sdk import Asset, AssetAlias
from airflow.sdk.execution_time.comms import AssetEventDagRunReferenceResult
from airflow.sdk.execution_time.context import TriggeringAssetEventsAccessor

from airflow_provider_sharedstream.messages import Message, messages
from airflow_provider_sharedstream.messages.payload import MessagesEvent, event_payload
from tests.messages.airflow_path import as_a_task_sees

START = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
ORDERS, REFUNDS = Asset("orders", uri="x://h/orders"), Asset("refunds", uri="x://h/refunds")


def payload(*numbers: int, source: str = "sqs", stream: str = "q", body: Any = None) -> dict[str, Any]:
    return event_payload(source, stream, [Message(f"m-{n}", {"n": n} if body is None else body) for n in numbers])


@dataclass
class Stored:
    """An asset event in the database."""

    asset: Asset
    extra: dict[str, Any]
    seconds: float = 0
    aliases: list[str] = field(default_factory=list)


def triggering(*events: Stored) -> TriggeringAssetEventsAccessor:
    return TriggeringAssetEventsAccessor.build(
        AssetEventDagRunReferenceResult.model_validate(
            {
                "asset": {"name": event.asset.name, "uri": event.asset.uri, "extra": {}},
                "extra": event.extra,
                "source_task_id": None,
                "source_dag_id": None,
                "source_run_id": None,
                "source_map_index": None,
                "source_aliases": [{"name": name} for name in event.aliases],
                "timestamp": START + timedelta(seconds=event.seconds),
            }
        )
        for event in events
    )


def ours(asset: Asset, *numbers: int, seconds: float = 0, **more: Any) -> Stored:
    return Stored(asset, {"from_trigger": True, "payload": payload(*numbers, **more)}, seconds)


def numbers(found: list[Message]) -> list[int]:
    return [message.body["n"] for message in found]


def test_messages_are_typed() -> None:
    sent = Message("m", {"a": [1]}, {"h": "v"}, "k", START, 2, {"queue": "q"})
    (seen,) = messages(as_a_task_sees(MessagesEvent(payload=event_payload("sqs", "q", [sent]))))
    assert seen == sent


def test_events_are_flattened_in_the_order_in_which_they_were_stored() -> None:
    events = triggering(ours(ORDERS, 5, 6, seconds=3), ours(REFUNDS, 3, 4, seconds=2), ours(ORDERS, 1, 2, seconds=1))
    assert numbers(messages(events)) == [1, 2, 3, 4, 5, 6]


def test_a_repeat_is_returned_once_and_in_its_first_place() -> None:
    events = triggering(ours(ORDERS, 1, 2), ours(ORDERS, 2, 3, seconds=1), ours(ORDERS, 1, seconds=2))
    assert numbers(messages(events)) == [1, 2, 3]


def test_the_same_id_from_another_source_is_another_message() -> None:
    events = triggering(ours(ORDERS, 1), ours(ORDERS, 1, stream="other"), ours(ORDERS, 1, source="kafka"))
    assert len(messages(events)) == 3


def test_two_assets_share_a_message_unless_their_watchers_made_different_bodies_of_it() -> None:
    assert len(messages(triggering(ours(ORDERS, 1), ours(REFUNDS, 1)))) == 1
    events = triggering(ours(ORDERS, 1, body="for orders"), ours(REFUNDS, 1, body="for refunds", seconds=1))
    assert [message.body for message in messages(events)] == ["for orders", "for refunds"]
    # A function that answers differently each time makes no second message of a redelivery.
    again = triggering(ours(ORDERS, 1, body="first"), ours(ORDERS, 1, body="second", seconds=1))
    assert [message.body for message in messages(again)] == ["first"]


@pytest.mark.parametrize(
    "asset", [REFUNDS, "refunds", "x://h/refunds", Asset.ref(name="refunds"), Asset.ref(uri="x://h/refunds")], ids=repr
)
def test_one_asset_s_messages(asset: Any) -> None:
    events = triggering(ours(ORDERS, 1), ours(REFUNDS, 2), ours(ORDERS, 3))
    assert numbers(messages(events, asset=asset)) == [2]


def test_an_alias_has_its_events_and_makes_no_second_message_of_them() -> None:
    event = ours(ORDERS, 1)
    event.aliases = ["incoming"]
    events = triggering(event, ours(REFUNDS, 2))
    assert numbers(messages(events)) == [1, 2]
    assert numbers(messages(events, asset=AssetAlias("incoming"))) == [1]
    assert messages(events, asset=AssetAlias("refunds")) == []
    assert messages(events, asset="nothing of this name") == []


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"from_trigger": True, "payload": None},
        {"from_trigger": True, "payload": {"file": "a.csv"}},
        {"from_trigger": True, "payload": "a text"},
        {"messages": [{"id": 1}]},
        {"payload": {"source": "s", "messages": "none"}},
        {"payload": {"source": "s", "messages": [{"no": "id"}]}},
        {"payload": {"source": "s", "messages": [5]}},
    ],
    ids=str,
)
def test_events_of_others_are_passed_over(extra: dict[str, Any]) -> None:
    assert numbers(messages(triggering(Stored(ORDERS, extra), ours(ORDERS, 1)))) == [1]
    assert messages(triggering(Stored(ORDERS, extra))) == []


@pytest.mark.parametrize("nothing", [None, {}, [], triggering()], ids=repr)
def test_a_run_that_no_event_started_has_no_messages(nothing: Any) -> None:
    assert messages(nothing) == []


def test_plain_events_will_do() -> None:
    direct = [{"extra": payload(1)}, {"extra": {"payload": payload(2)}}]
    assert numbers(messages(direct)) == [1, 2]
    assert numbers(messages({"orders": direct, "refunds": [{"extra": payload(3)}]})) == [1, 2, 3]
    assert numbers(messages({"orders": direct, "refunds": [{"extra": payload(3)}]}, asset=REFUNDS)) == [3]
    assert numbers(
        messages([{"extra": payload(1), "asset": {"name": "orders"}}, {"extra": payload(2)}], asset="orders")
    ) == [1]


def test_what_names_no_asset_is_refused() -> None:
    with pytest.raises(TypeError, match="asset: expected an Asset"):
        messages(triggering(ours(ORDERS, 1)), asset=5)


def test_in_a_template() -> None:
    events = triggering(ours(ORDERS, 1, 2))
    text = "{% for m in messages(triggering_asset_events) %}{{ m.id }}={{ m.body.n }};{% endfor %}"
    assert jinja2.Template(text).render(messages=messages, triggering_asset_events=events) == "m-1=1;m-2=2;"


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from airflow_provider_sharedstream.messages import Message, RejectMessage, messages\n"
        "print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "airflow_provider_sharedstream" in loaded
    # msgspec it does load, as Airflow's own SDK has by then.
    assert not loaded & {"airflow", "jmespath", "pydantic", "structlog", "sqlalchemy"}

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from airflow_provider_sharedstream.messages import decode as decode_module
from airflow_provider_sharedstream.messages.apply import MAX_THREADS, ApplyFunction
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.limits import sized, split
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.pipeline import COUNTS, MessagePipeline
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt
from tests.airflow_loop import until
from tests.messages import functions

BROKEN = b'{"price": NaN}'
HERE = "tests.messages.functions"


def deliveries(*bodies: Any) -> list[Delivery]:
    raw = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    return [Delivery(id=f"d-{number}", body=body) for number, body in enumerate(raw)]


def records(*keys: str) -> dict[str, Any]:
    return {"Records": [{"eventName": "e", "s3": {"object": {"key": key}}} for key in keys]}


class Watched:
    """One watcher's look at a batch."""

    def __init__(self, batch: Sequence[Delivery], **arguments: Any) -> None:
        self.batch = batch
        self.receipt = Receipt(Batch(batch), "watcher")
        self.counts: Counter[str] = Counter()
        decoder = Decoder(arguments.pop("decode", "auto"), arguments.pop("unwrap", ()))
        matcher = Matcher(arguments.pop("match", None))
        function = arguments.pop("apply_function", None)
        self.pipeline = MessagePipeline(
            decoder,
            matcher,
            function and (function if isinstance(function, ApplyFunction) else ApplyFunction(f"{HERE}.{function}")),
            arguments.pop("on_error", "reject"),
            lambda name, number: self.counts.update({name: number}),
            **arguments,
        )

    async def look(self) -> list[Message]:
        return await self.pipeline.messages_for(self.batch, self.receipt)

    @property
    def matched(self) -> list[str]:
        return sorted(delivery.id for delivery in self.receipt.matched)

    @property
    def rejected(self) -> dict[str, str]:
        return {delivery.id: reason for delivery, reason in self.receipt.rejected.items()}

    @property
    def failed(self) -> list[str]:
        return sorted(delivery.id for delivery in self.receipt.failed)


async def test_a_batch_that_matches_in_full_is_noted_as_one() -> None:
    watched = Watched(deliveries(1, 2, 3))
    assert [message.body for message in await watched.look()] == [1, 2, 3]
    assert watched.receipt.matched_all
    assert watched.matched == []
    assert watched.counts == {"matched": 3}


async def test_each_delivery_is_noted_by_itself() -> None:
    watched = Watched(deliveries({"n": 1}, {"n": 2}, BROKEN, "x", {"n": 1}), match="body.n == `1`")
    assert [message.id for message in await watched.look()] == ["d-0", "d-4"]
    assert watched.matched == ["d-0", "d-4"]
    assert watched.rejected == {"d-2": "body.price can't be stored: the number nan is not JSON"}
    assert watched.failed == []
    assert not watched.receipt.matched_all
    assert watched.counts == {"matched": 2, "unmatched": 2, "undecodable": 1}


@pytest.mark.parametrize(
    ("on_error", "rejected", "failed"), [("reject", {"d-1"}, []), ("skip", set(), []), ("release", set(), ["d-1"])]
)
async def test_a_decoder_asked_for_by_name_follows_on_error(
    on_error: str, rejected: set[str], failed: list[str]
) -> None:
    watched = Watched(deliveries(1, b"{broken"), decode="json", on_error=on_error)
    assert [message.id for message in await watched.look()] == ["d-0"]
    assert (set(watched.rejected), watched.failed, watched.matched) == (rejected, failed, ["d-0"])
    assert watched.counts["undecodable"] == 1


@pytest.mark.parametrize("on_error", ["reject", "skip", "release"])
async def test_what_auto_cannot_decode_is_rejected_whatever_on_error_says(on_error: str) -> None:
    watched = Watched(deliveries(BROKEN), on_error=on_error)
    assert await watched.look() == []
    assert list(watched.rejected) == ["d-0"]


@pytest.mark.parametrize(
    ("on_error", "rejected", "failed"),
    [("reject", ["d-2", "d-3"], []), ("skip", ["d-2"], []), ("release", ["d-2"], ["d-3"])],
)
async def test_a_function_s_results_are_noted(on_error: str, rejected: list[str], failed: list[str]) -> None:
    batch = deliveries("emit", "skip", "refuse", "raise", "as it is")
    watched = Watched(batch, apply_function="decide", on_error=on_error)
    assert [message.id for message in await watched.look()] == ["d-0", "d-4"]
    assert (watched.matched, list(watched.rejected), watched.failed) == (["d-0", "d-4"], rejected, failed)
    assert watched.rejected["d-2"] == "no order number"
    counts = {"matched": 2, "apply_skipped": 1, "apply_rejected": 1, "apply_failed": 1}
    assert {name: watched.counts[name] for name in counts} == counts


async def test_a_turn_that_does_not_come_is_released_whatever_on_error_says() -> None:
    functions.release.clear()
    function = ApplyFunction(f"{HERE}.hang", timeout_seconds=0.1)
    watched = Watched(deliveries(*["hang"] * MAX_THREADS, "a"), apply_function=function)
    assert await watched.look() == []
    functions.release.set()
    assert watched.failed == [f"d-{MAX_THREADS}"]
    assert len(watched.rejected) == MAX_THREADS
    assert watched.counts == {"apply_timed_out": MAX_THREADS, "apply_not_called": 1}


@pytest.mark.parametrize(
    ("keys", "on_error", "emitted", "matched", "rejected", "failed"),
    [
        (["emit", "emit"], "reject", 2, ["d-0"], [], []),
        (["emit", "skip"], "reject", 1, ["d-0"], [], []),
        (["skip", "skip"], "reject", 0, [], [], []),
        (["emit", "refuse"], "reject", 1, ["d-0"], ["d-0"], []),
        (["emit", "raise"], "release", 0, [], [], ["d-0"]),
        (["emit", "refuse", "raise"], "release", 0, [], [], ["d-0"]),
        (["emit", "raise"], "skip", 1, ["d-0"], [], []),
    ],
)
async def test_what_several_messages_were_unwrapped_from_has_one_fate(
    keys: list[str], on_error: str, emitted: int, matched: list[str], rejected: list[str], failed: list[str]
) -> None:
    batch = deliveries(records(*keys), records("emit"))
    watched = Watched(batch, unwrap=["s3"], apply_function="by_key", on_error=on_error)
    found = await watched.look()
    parts = [f"d-0#{n}" for n, key in enumerate(keys) if key == "emit"]
    assert [message.id for message in found] == [*parts[:emitted], "d-1#0"]
    if watched.receipt.matched_all:
        assert (matched, rejected, failed) == (["d-0"], [], [])
    else:
        assert (watched.matched, list(watched.rejected), watched.failed) == ([*matched, "d-1"], rejected, failed)


async def test_a_delivery_of_which_only_a_part_matches_is_matched() -> None:
    batch = deliveries(records("a", "b"))
    watched = Watched(batch, unwrap=["s3"], match={"attributes.s3.key": "b"})
    assert [message.id for message in await watched.look()] == ["d-0#1"]
    assert watched.matched == ["d-0"]
    assert watched.counts == {"matched": 1, "unmatched": 1}


async def test_twenty_watchers_decode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    real = decode_module._WAYS["auto"]

    def counted(body: Any, declared: Any) -> Any:
        calls["auto"] += 1
        return real(body, declared)

    monkeypatch.setitem(decode_module._WAYS, "auto", counted)
    batch = deliveries({"n": 1}, BROKEN)
    for _ in range(20):
        watched = Watched(batch)
        assert len(await watched.look()) == 1
        assert list(watched.rejected) == ["d-1"]
    assert calls["auto"] == 2
    other = Watched(batch, decode="text")
    assert [message.body for message in await other.look()] == ['{"n": 1}', BROKEN.decode()]
    await Watched(batch).look()
    assert calls["auto"] == 2, "what the one decoder made is kept beside the other's"


async def test_what_cannot_be_imported_here_releases_the_batch() -> None:
    for arguments in ({"decode": "no_such.module"}, {"apply_function": "nothing"}):
        watched = Watched(deliveries(1, 2), **arguments)
        with pytest.raises(InvalidArgument):
            watched.pipeline.validate()
        assert await watched.look() == []
        assert watched.failed == ["d-0", "d-1"]
        assert watched.rejected == {}


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("cloudevents.core.bindings.common", {"unwrap": ["cloudevents"]}, "cloudevents"),
        ("confluent_kafka.schema_registry", {"decode": "schema_registry"}, "schema-registry"),
    ],
)
async def test_an_extra_that_is_not_installed_is_named_and_releases(
    missing: str, arguments: dict[str, Any], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMA_REGISTRY_DEFAULT", "http://127.0.0.1:9")
    event = {"specversion": "1.0", "id": "1", "source": "s", "type": "t", "data": 1}
    body = b"\0\0\0\0\1x" if "decode" in arguments else json.dumps(event).encode()
    watched = Watched(deliveries(body), **arguments)
    with pytest.raises(InvalidArgument, match=rf"airflow-provider-sharedstream\[{extra}\]"):
        watched.pipeline.validate()
    assert await watched.look() == []
    assert watched.failed == ["d-0"]
    assert watched.rejected == {}


async def test_an_error_of_ours_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Decoder, delivery: Delivery) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(Decoder, "messages_of", fail)
    watched = Watched(deliveries(1, 2))
    assert await watched.look() == []
    assert watched.failed == ["d-0", "d-1"]


async def test_cancellation_passes_through_and_nothing_is_noted() -> None:
    functions.release.clear()
    functions.called.clear()
    watched = Watched(deliveries("hang"), apply_function="hang")
    task = asyncio.ensure_future(watched.look())
    await until(lambda: functions.called)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    functions.release.set()
    assert (watched.matched, watched.rejected, watched.failed) == ([], {}, [])
    assert not watched.receipt.matched_all


async def test_each_kind_of_trouble_is_logged_once_without_bodies() -> None:
    bodies = [{"secret": "s3cret", "v": "x"}, b'{"s3cret": NaN}', "raise"] * 5
    watched = Watched(deliveries(*bodies), apply_function="decide", match="body.v > `1` || body == 'raise'")
    with capture_logs() as logs:
        await watched.look()
        await watched.look()
    kinds = Counter(entry["event"].split(":")[0].split(";")[0] for entry in logs)
    assert kinds == {
        "match can't be evaluated on a message, which counts as no match": 1,
        "a message can't be decoded": 1,
        "apply_function": 1,
    }
    assert watched.counts["match_error"] == 10
    assert watched.counts["apply_failed"] == 10
    assert watched.counts["undecodable"] == 10
    assert [entry for entry in logs if entry["log_level"] != "warning"] == []
    assert "s3cret" not in json.dumps([{**entry, "reason": ""} for entry in logs], default=str)


async def test_every_count_is_described() -> None:
    functions.release.set()
    counts: Counter[str] = Counter()
    bodies = ["emit", "skip", "refuse", "raise", BROKEN, {"v": "x"}, 7, "x" * 50]
    for oversize in ("omit", "reject"):
        watched = Watched(
            deliveries(*bodies),
            apply_function="decide",
            match="body != `7` && (type(body) == 'string' || body.v > `1`)",
            max_payload_bytes=130,
            on_oversize=oversize,
        )
        await watched.look()
        counts += watched.counts
    sieved = {"repeated", "repeated_early", "expired"}
    assert set(counts) == set(COUNTS) - {"apply_timed_out", "apply_not_called"} - sieved


async def test_other_tasks_get_their_turn_while_large_batches_are_decoded() -> None:
    body = json.dumps([{"n": n} for n in range(20_000)]).encode()
    watched = Watched(deliveries(*[body] * 40), max_payload_bytes=None)
    turns = 0

    async def neighbour() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.ensure_future(neighbour())
    assert len(await watched.look()) == 40
    task.cancel()
    assert turns > 10


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"on_error": "ignore"}, "on_error: expected one of reject, skip, release, got 'ignore'"),
        ({"on_oversize": None}, "on_oversize: expected one of split, omit, reject, got None"),
        ({"max_payload_bytes": 0}, "max_payload_bytes: expected a positive number of bytes or None, got 0"),
        ({"max_payload_bytes": "64k"}, "got '64k'"),
        (
            {"decode": "jsn"},
            "decode: expected auto, json, text, bytes, schema_registry, schema_registry:connection_id or a callable",
        ),
        ({"decode": None}, "got None"),
        ({"unwrap": ["sqs"]}, "unwrap: there is no envelope 'sqs': expected one of sns, s3"),
        ({"unwrap": 5}, "unwrap: expected a list of names"),
    ],
)
def test_a_wrong_argument_is_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        Watched(deliveries(1), **arguments)
    assert reason in str(caught.value)


@pytest.mark.parametrize("path", ["tests.messages.decoders.later", "tests.messages.decoders.not_callable", "a.b"])
def test_a_decoder_that_cannot_work_is_said_at_once(path: str) -> None:
    with pytest.raises(InvalidArgument, match="decode: "):
        Decoder(path).validate()


def test_decoders_are_equal_by_what_they_do() -> None:
    assert Decoder("json", ["sns"]) == Decoder("json", ("sns",))
    assert len({Decoder(), Decoder("auto"), Decoder("text"), Decoder("auto", ["s3"])}) == 3


def test_a_failure_is_raised_anew_each_time() -> None:
    (delivery,) = deliveries(BROKEN)
    for _ in range(2):
        with pytest.raises(UndecodableMessage, match="body.price") as caught:
            Decoder().messages_of(delivery)
        assert len(caught.traceback) == 2


def test_delivery_facts_stand_in_the_message() -> None:
    (message,) = Decoder().messages_of(
        Delivery(id="d", body=b"1", key="k", delivery_count=3, attributes={"queue": "q"})
    )
    assert (message.key, message.delivery_count, message.attributes) == ("k", 3, {"queue": "q"})
    (message,) = Decoder().messages_of(Delivery(id="d", body=b"1", delivery_count=0))
    assert message.delivery_count is None
    (message,) = Decoder().messages_of(Delivery(id="d", body=b"1", key=b"\xff"))  # type: ignore[arg-type]
    assert (message.key, message.attributes) == ("/w==", {"key_encoding": "base64"})


# --- how large an event may be


def made(*lengths: int) -> list[Message]:
    return [Message(f"m-{number}", "x" * length) for number, length in enumerate(lengths)]


def test_groups_are_as_few_as_their_size_allows_and_keep_the_order() -> None:
    measured = [sized(message) for message in made(*[100] * 10)]
    assert [len(group) for group in split(measured, measured[0].size * 4)] == [4, 4, 2]
    groups = split([sized(message) for message in made(10, 5000, 10, 10)], 1000)
    assert [[message.id for message in group] for group in groups] == [["m-0"], ["m-1"], ["m-2", "m-3"]]
    assert split([], 1000) == split([], None) == []
    assert [len(group) for group in split(measured, None)] == [10]


def test_the_size_is_that_of_the_payload() -> None:
    message = Message("m-1", {"a": ["é", 1]}, {"h": "v"}, "k", attributes={"t": 1})
    whole = len(json.dumps(message.as_dict(), ensure_ascii=False, separators=(",", ":")).encode()) + 1
    assert sized(message).size == whole


async def test_a_large_batch_becomes_several_events_that_each_fit() -> None:
    watched = Watched(deliveries(*["x" * 1000] * 50), max_payload_bytes=10_000)
    groups = await watched.pipeline.groups_for(watched.batch, watched.receipt)
    assert [message.id for group in groups for message in group] == [f"d-{n}" for n in range(50)]
    assert [len(json.dumps([m.as_dict() for m in group], separators=(",", ":"))) <= 10_000 for group in groups] == [
        True
    ] * len(groups)
    assert len(groups) == 6
    assert watched.receipt.matched_all


async def test_a_message_that_is_too_large_by_itself() -> None:
    batch = deliveries("a", "x" * 5000, "b")
    whole = Watched(batch, max_payload_bytes=1000)
    groups = await whole.pipeline.groups_for(batch, whole.receipt)
    assert [[len(message.body) for message in group] for group in groups] == [[1], [5000], [1]]

    omitted = Watched(batch, max_payload_bytes=1000, on_oversize="omit")
    ((a, large, b),) = await omitted.pipeline.groups_for(batch, omitted.receipt)
    assert (a.body, large.body, b.body) == ("a", None, "b")
    assert large.attributes == {"body_omitted": {"bytes": 5002}}
    assert omitted.receipt.matched_all

    rejected = Watched(batch, max_payload_bytes=1000, on_oversize="reject")
    ((a, b),) = await rejected.pipeline.groups_for(batch, rejected.receipt)
    assert (a.body, b.body) == ("a", "b")
    assert rejected.matched == ["d-0", "d-2"]
    assert list(rejected.rejected) == ["d-1"]
    assert "are more than max_payload_bytes (1000)" in rejected.rejected["d-1"]

"""From a trigger's arguments to its way through a batch, and from what that found to metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.messages.apply import ApplyFunction
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.messages.repeats import MOST_REMEMBERED, Repeats
from airflow_provider_sharedstream.messages.sieves import MaxAge, Sieve
from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.dead_letter import PREFIX
from airflow_provider_sharedstream.stream.metrics import StreamMetrics
from airflow_provider_sharedstream.stream.recall import Question, recall
from airflow_provider_sharedstream.triggers.watching import WatchedBatch

if TYPE_CHECKING:
    from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

STREAM_COUNTERS = {
    "match_error": metrics.UNJUDGED,
    "apply_rejected": metrics.REJECTED,
    "undecodable": metrics.REJECTED,
    "repeated": metrics.REPEATED,
    "expired": metrics.EXPIRED,
}


def build_pipeline(trigger: BrokerEventTrigger, found: Counter[str]) -> MessagePipeline:
    """Build it anew, for one watch.

    :param found: counts what was found.
    :raises InvalidArgument: an argument is wrong.
    """
    arguments = trigger.arguments
    path = arguments["apply_function"]
    apply_function = None
    if path is not None:
        apply_function = ApplyFunction(path, timeout_seconds=arguments["apply_timeout_seconds"])

    def count(name: str, number: int) -> None:
        found[name] += number

    pipeline = MessagePipeline(
        trigger.decoder,
        Matcher(arguments["match"]),
        apply_function,
        arguments["on_error"],
        count,
        arguments["max_payload_bytes"],
        arguments["on_oversize"],
        build_sieves(trigger),
    )
    pipeline.watcher = trigger.watcher_name
    return pipeline


def build_sieves(trigger: BrokerEventTrigger) -> list[Sieve]:
    """Return what holds some of the messages that match, anew for each watch.

    :raises InvalidArgument: an argument is wrong.
    """
    arguments = trigger.arguments
    sieves: list[Sieve] = []
    if arguments["max_age_seconds"] is not None:
        sieves.append(MaxAge(arguments["max_age_seconds"], arguments["on_expired"]))
    window_seconds = arguments["dedupe_window_seconds"]
    if window_seconds is not None:
        durable = arguments["dedupe_durable"] and trigger.trigger_id is not None
        question = Question(trigger.trigger_id or 0, window_seconds, MOST_REMEMBERED)
        repeats = Repeats(
            window_seconds,
            PREFIX,
            arguments["dedupe_key"],
            history_of=trigger.history_of,
            shows_put_back=trigger.shows_put_back,
            source=trigger.stream_identity().source,
            recall=(lambda: recall(question)) if durable else None,
        )
        sieves.append(repeats)
    return sieves


def report(batch: WatchedBatch, found: Counter[str]) -> None:
    """Put what was found in ``batch`` into the metrics, and begin anew."""
    if worth_counting := {name: number for name, number in found.items() if name in STREAM_COUNTERS}:
        stream_metrics = StreamMetrics(batch.source, batch.stream)
        for name, number in worth_counting.items():
            stream_metrics.count(STREAM_COUNTERS[name], number)
    found.clear()

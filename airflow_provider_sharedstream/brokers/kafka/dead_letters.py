"""The copy of a rejected record in the dead-letter topic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

from airflow_provider_sharedstream.brokers.kafka.client import stopped
from airflow_provider_sharedstream.brokers.kafka.delivery import KafkaDelivery
from airflow_provider_sharedstream.brokers.kafka.errors import NoReport
from airflow_provider_sharedstream.connections.kafka import KafkaSettings
from airflow_provider_sharedstream.stream.dead_letter import PREFIX, note
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

log = logging.getLogger(__name__)

REPORT_SECONDS = 30.0
"""How long the brokers may take to write copies to all replicas."""

Headers = list[tuple[str, "bytes | None"]]


class DeadLetters:
    """Writes copies, each with the original's key, value and headers, and the note on it.

    :param topic: where they go.
    :param settings: the connection's.
    :param clear: makes an error say what to change.
    """

    def __init__(self, topic: str, settings: KafkaSettings, clear: Callable[[Exception], Exception]) -> None:
        from aiokafka import AIOKafkaProducer

        self._topic = topic
        self._clear = clear
        client = {**settings.client, "request_timeout_ms": int(REPORT_SECONDS * 1000)}
        self._producer = AIOKafkaProducer(**client, **settings.producer, acks="all")

    async def open(self) -> None:
        """Connect."""
        await self._producer.start()

    async def close(self) -> None:
        """Let go. Idempotent."""
        await stopped(self._producer, self._producer.client)

    async def store(self, deliveries: Sequence[KafkaDelivery]) -> dict[KafkaDelivery, Exception]:
        """Write a copy of each; return what failed when the brokers have reported on all."""
        failures = await self._send(deliveries, with_note=True)
        too_large = [delivery for delivery, error in failures.items() if _is_too_large(error)]
        if too_large:
            # A record of the largest size has no room for a note; the log has it.
            for delivery in too_large:
                log.warning("Dead letter %s is too large for its note: %s", delivery.id, delivery.reason)
                del failures[delivery]
            failures.update(await self._send(too_large, with_note=False))
        return {delivery: self._say(delivery, error) for delivery, error in failures.items()}

    async def _send(self, deliveries: Sequence[KafkaDelivery], *, with_note: bool) -> dict[KafkaDelivery, Exception]:
        failures: dict[KafkaDelivery, Exception] = {}
        reports: dict[KafkaDelivery, asyncio.Future[Any]] = {}
        trouble: Exception | None = None
        for delivery in deliveries:
            if trouble is not None:
                # The brokers are away, or the topic: each one by itself would wait as long again.
                failures[delivery] = trouble
                continue
            try:
                reports[delivery] = await self._producer.send(self._topic, **_copy(delivery, with_note))
            except Exception as error:
                failures[delivery] = error
                trouble = None if _is_too_large(error) else error
        if reports:
            await asyncio.wait(reports.values(), timeout=REPORT_SECONDS)
        for delivery, report in reports.items():
            if not report.done():
                report.add_done_callback(_seen)
                failures[delivery] = NoReport(f"no report on a dead letter for {REPORT_SECONDS:g} s")
            elif isinstance(why := report.exception(), Exception):
                failures[delivery] = why
        return failures

    def _say(self, delivery: KafkaDelivery, error: Exception) -> Exception:
        if not _is_too_large(error):
            return self._clear(error)
        return SourceUnavailable(
            f"dead_letter_topic={self._topic!r} takes no record as large as {delivery.id} ({len(delivery.body or b'')} "
            "bytes): raise its max.message.bytes to that of the topics that are read."
        )


def _copy(delivery: KafkaDelivery, with_note: bool) -> dict[str, Any]:
    headers: Headers = list(delivery.pairs)
    key, value = delivery.key, delivery.body
    if with_note:
        topic, partition = delivery.lane
        about = note(cast("Delivery", delivery), f"{topic}[{partition}]@{delivery.offset}").as_headers()
        about[PREFIX + "topic"] = topic
        about[PREFIX + "partition"] = str(partition)
        about[PREFIX + "offset"] = str(delivery.offset)
        about[PREFIX + "timestamp"] = str(delivery.timestamp)
        # A letter that was put back and is rejected again has a new note.
        headers = [pair for pair in headers if pair[0] not in about]
        headers += [(name, text.encode()) for name, text in about.items()]
    if key is None and value is None:
        # aiokafka sends no record without both.
        key = b""
        headers.append((PREFIX + "without-key", b"true"))
    return {"key": key, "value": value, "headers": headers}


def _is_too_large(error: BaseException) -> bool:
    from aiokafka.errors import MessageSizeTooLargeError

    return isinstance(error, MessageSizeTooLargeError)


def _seen(report: asyncio.Future[Any]) -> None:
    if not report.cancelled():
        report.exception()

"""Decode, match, apply: one watcher's way through a batch, and what it notes on its receipt.

What becomes of a delivery that was unwrapped into several messages, since the broker hears one word about all of
them:

- one message of it *fails* (``on_error="release"``, or its turn didn't come): nothing of it is emitted, as all of it
  comes again;
- one message of it is *rejected*: the others are emitted all the same. The broker won't deliver it again by itself,
  so what isn't emitted now might never be. Whoever puts it back from the dead letters starts the others a second
  time, under the same ids;
- else it is matched if any message of it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import structlog

from airflow_provider_sharedstream.messages.apply import ApplyFunction, Kind
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt

log = structlog.get_logger(logger_name=__name__)

OnError = Literal["reject", "skip", "release"]
Count = Callable[[str, int], None]

COUNTS: dict[str, str] = {
    "matched": "messages that went into an event",
    "unmatched": "messages that are not the watcher's",
    "match_error": "messages on which `match` can't be evaluated; they don't match",
    "undecodable": "deliveries that can't be decoded",
    "apply_skipped": "messages that `apply_function` skipped",
    "apply_rejected": "messages that `apply_function` refused for good",
    "apply_failed": "messages on which `apply_function` raised, or returned what can't be stored",
    "apply_timed_out": "messages on which `apply_function` took too long",
    "apply_not_called": "messages released because their turn at `apply_function` didn't come",
}
"""Names of what is counted, and what they mean."""

_SLICE_SECONDS = 0.01
"""How long decoding and matching may keep the event loop, which all triggers share, before others get a turn."""


class _Candidate(NamedTuple):
    delivery: Delivery
    message: Message


class MessagePipeline:
    """One watcher's way from deliveries to messages.

    :param decoder: bytes to messages.
    :param matcher: which are the watcher's own.
    :param apply_function: the user's function on those; None: none.
    :param on_error: what happens to a delivery that a decoder asked for by name can't decode, or on which
        ``apply_function`` fails or takes too long: ``reject`` refuses it for good, ``skip`` treats it as not matched,
        ``release`` lets it come again. What ``auto`` can't decode is refused in any case.
    :param count: told what happened: a name of :data:`COUNTS` and how often.
    """

    def __init__(
        self,
        decoder: Decoder,
        matcher: Matcher,
        apply_function: ApplyFunction | None = None,
        on_error: OnError = "reject",
        count: Count | None = None,
    ) -> None:
        self.decoder = decoder
        self.matcher = matcher
        self.apply_function = apply_function
        self.on_error = on_error
        self._count = count or (lambda name, number: None)
        self._said: set[str] = set()
        matcher.on_error = self._match_failed

    def validate(self) -> None:
        """Import what the arguments name.

        :raises InvalidArgument: something can't be imported.
        """
        self.decoder.validate()
        if self.apply_function is not None:
            self.apply_function.validate()

    async def messages_for(self, deliveries: Sequence[Delivery], receipt: Receipt) -> list[Message]:
        """Return the watcher's messages of ``deliveries``, in order, and note on ``receipt`` what becomes of each
        delivery.

        Nothing is raised but the cancellation of the task.
        """
        try:
            return await self._messages_for(deliveries, receipt)
        except Exception as error:
            # A mistake of ours, or an argument that can't be imported here. All of it comes again, and nothing is
            # lost meanwhile.
            self._say("pipeline", "a batch could not be handled and is released", error=_name(error), exc_info=True)
            for delivery in deliveries:
                receipt.fail(delivery)
            return []

    async def _messages_for(self, deliveries: Sequence[Delivery], receipt: Receipt) -> list[Message]:
        candidates: list[_Candidate] = []
        decoded = matched = 0
        clean = True
        messages_of, matches = self.decoder.messages_of, self.matcher.matches
        started = time.monotonic()
        for delivery in deliveries:
            try:
                messages = messages_of(delivery)
            except UndecodableMessage as error:
                clean = False
                self._undecodable(delivery, str(error), receipt)
                continue
            own = False
            for message in messages:
                decoded += 1
                if matches(message):
                    own = True
                    candidates.append(_Candidate(delivery, message))
            matched += own
            if time.monotonic() - started > _SLICE_SECONDS:
                await asyncio.sleep(0)
                started = time.monotonic()
        if decoded > len(candidates):
            self._count("unmatched", decoded - len(candidates))
        if self.apply_function is not None and candidates:
            return await self._apply(self.apply_function, candidates, receipt)
        if clean and matched == len(deliveries) and decoded == len(candidates):
            receipt.match_all()
        else:
            for candidate in candidates:
                receipt.match(candidate.delivery)
        if candidates:
            self._count("matched", len(candidates))
        return [candidate.message for candidate in candidates]

    async def _apply(
        self, function: ApplyFunction, candidates: Sequence[_Candidate], receipt: Receipt
    ) -> list[Message]:
        results = await function.apply([candidate.message for candidate in candidates])
        emitted: list[_Candidate] = []
        rejected: list[tuple[Delivery, str]] = []
        failed: set[Delivery] = set()
        for (delivery, message), result in zip(candidates, results, strict=True):
            if result.kind is Kind.EMIT and result.message is not None:
                emitted.append(_Candidate(delivery, result.message))
                continue
            self._count(f"apply_{'skipped' if result.kind is Kind.SKIP else result.kind.value}", 1)
            if result.kind is Kind.SKIP:
                continue
            self._say(f"apply_{result.kind.value}", f"apply_function: {result.reason}", message=message.id)
            if result.kind is Kind.NOT_CALLED or (result.kind is not Kind.REJECTED and self.on_error == "release"):
                failed.add(delivery)
            elif result.kind is Kind.REJECTED or self.on_error == "reject":
                rejected.append((delivery, result.reason))
        for delivery in failed:
            receipt.fail(delivery)
        for delivery, reason in rejected:
            if delivery not in failed:
                receipt.reject(delivery, reason)
        kept = [candidate for candidate in emitted if candidate.delivery not in failed]
        for candidate in kept:
            receipt.match(candidate.delivery)
        if kept:
            self._count("matched", len(kept))
        return [candidate.message for candidate in kept]

    def _undecodable(self, delivery: Delivery, reason: str, receipt: Receipt) -> None:
        self._count("undecodable", 1)
        self._say("undecodable", "a message can't be decoded", message=delivery.id, reason=reason)
        if not self.decoder.named or self.on_error == "reject":
            receipt.reject(delivery, reason)
        elif self.on_error == "release":
            receipt.fail(delivery)

    def _match_failed(self, message: Message, error: Exception) -> None:
        self._count("match_error", 1)
        self._say(
            "match",
            "match can't be evaluated on a message, which counts as no match",
            message=message.id,
            error=_name(error),
        )

    def _say(self, kind: str, event: str, **details: object) -> None:
        """Log the first of its kind: a queue full of such messages must not fill the log."""
        if kind not in self._said:
            self._said.add(kind)
            log.warning(f"{event}; more of this kind are counted, not logged", match=self.matcher.expression, **details)


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"

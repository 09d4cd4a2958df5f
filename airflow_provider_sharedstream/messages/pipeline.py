"""Decode, match, apply, limit: one watcher's way through a batch, and what it notes on its receipt.

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
from typing import Literal, get_args

import structlog

from airflow_provider_sharedstream.messages.apply import ApplyFunction, Kind
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.findings import Findings
from airflow_provider_sharedstream.messages.limits import (
    MAX_PAYLOAD_BYTES,
    OnOversize,
    Sized,
    sized,
    split,
    without_body,
)
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.sieves import Candidate, Fate, Sieve
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable, UndecodableMessage
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
    "repeated": "messages whose event was stored less than `dedupe_window_seconds` ago; they make none",
    "repeated_early": "messages released because the event of their first delivery is not stored yet",
    "expired": "messages older than `max_age_seconds`",
    "oversize_omitted": "messages larger than `max_payload_bytes` that went into an event without their body",
    "oversize_rejected": "messages larger than `max_payload_bytes` that were rejected",
}
"""Names of what is counted, and what they mean."""

_SLICE_SECONDS = 0.01
"""How long decoding and matching may keep the event loop, which all triggers share, before others get a turn."""


class MessagePipeline:
    """One watcher's way from deliveries to the messages of its events.

    :param decoder: bytes to messages.
    :param matcher: which are the watcher's own.
    :param apply_function: the user's function on those; None: none.
    :param on_error: what happens to a delivery that a decoder asked for by name can't decode, or on which
        ``apply_function`` fails or takes too long: ``reject`` refuses it for good, ``skip`` treats it as not matched,
        ``release`` lets it come again. What ``auto`` can't decode is refused in any case.
    :param max_payload_bytes: how large one event may be, as JSON; None: no limit.
    :param on_oversize: what happens to a message that is larger by itself: ``split`` gives it an event of its own, as
        large as it is; ``omit`` emits it without its body and with the attribute ``body_omitted``; ``reject`` refuses
        it.
    :param count: told what happened: a name of :data:`COUNTS` and how often.
    :param sieves: asked in this order about what matches.
    :raises InvalidArgument: an argument has none of its values.
    """

    def __init__(
        self,
        decoder: Decoder,
        matcher: Matcher,
        apply_function: ApplyFunction | None = None,
        on_error: OnError = "reject",
        count: Count | None = None,
        max_payload_bytes: int | None = MAX_PAYLOAD_BYTES,
        on_oversize: OnOversize = "split",
        sieves: Sequence[Sieve] = (),
    ) -> None:
        _expect("on_error", on_error, OnError)
        _expect("on_oversize", on_oversize, OnOversize)
        whole = isinstance(max_payload_bytes, int) and not isinstance(max_payload_bytes, bool)
        if max_payload_bytes is not None and not (whole and max_payload_bytes > 0):
            given = repr(max_payload_bytes)
            raise InvalidArgument(f"max_payload_bytes: expected a positive number of bytes or None, got {given}")
        self.decoder = decoder
        self.matcher = matcher
        self.apply_function = apply_function
        self.on_error = on_error
        self.max_payload_bytes = max_payload_bytes
        self.on_oversize = on_oversize
        self.sieves = sieves
        self._count = count or (lambda name, number: None)
        self.watcher = ""
        """Whose it is, for the log."""
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
        """Return the watcher's messages of ``deliveries`` as :meth:`groups_for` does, in one list."""
        return [message for group in await self.groups_for(deliveries, receipt) for message in group]

    async def groups_for(self, deliveries: Sequence[Delivery], receipt: Receipt) -> list[list[Message]]:
        """Return the watcher's messages of ``deliveries``, in order, each group of them for one event.

        What becomes of each delivery is noted on ``receipt``. Nothing is raised but the cancellation of the task.
        """
        try:
            found = await self._matching(deliveries)
            sieves = self.sieves if found.candidates else ()
            for sieve in sieves:
                await sieve.begin()
            self._sift(sieves, found)
            if self.apply_function is not None and found.candidates:
                await self._apply(self.apply_function, found)
            measured = self._measured(found)
            for sieve in sieves:
                for place in reversed(sieve.note(found.candidates, receipt)):
                    self._count("repeated", 1)
                    found.done.add(found.candidates.pop(place).delivery)
                    measured.pop(place)
            groups = split(measured, self.max_payload_bytes)
            found.note_on(receipt, deliveries)
        except Exception as error:
            # A mistake of ours, an argument that can't be imported here, a schema registry that is away: all of it
            # comes again, nothing is lost.
            event = "a batch could not be handled and is released"
            expected = isinstance(error, (InvalidArgument, SourceUnavailable))
            self._say(f"pipeline {type(error).__name__}", event, error=_name(error), exc_info=not expected)
            for delivery in deliveries:
                receipt.fail(delivery)
            return []
        if found.unmatched:
            self._count("unmatched", found.unmatched)
        if found.candidates:
            self._count("matched", len(found.candidates))
        return groups

    def stamp(self, group: Sequence[Message]) -> list[str] | None:
        """Return what is stored with the event of a group, so that its messages can be recognized later."""
        return next((made for sieve in self.sieves if (made := sieve.stamp(group)) is not None), None)

    async def _matching(self, deliveries: Sequence[Delivery]) -> Findings:
        found = Findings()
        candidates = found.candidates
        messages_of, matches = self.decoder.messages_of, self.matcher.matches
        if self.decoder.needs_preparation:
            await self.decoder.prepare(deliveries)
        started = time.monotonic()
        for delivery in deliveries:
            try:
                messages = messages_of(delivery)
            except UndecodableMessage as error:
                self._undecodable(delivery, str(error), found)
                continue
            for message in messages:
                if matches(message):
                    candidates.append(Candidate(delivery, message))
                else:
                    found.unmatched += 1
            if time.monotonic() - started > _SLICE_SECONDS:
                await asyncio.sleep(0)
                started = time.monotonic()
        return found

    def _sift(self, sieves: Sequence[Sieve], found: Findings) -> None:
        if not sieves:
            return
        passed: list[Candidate] = []
        for candidate in found.candidates:
            delivery, message = candidate
            held = next(filter(None, (sieve.judge(candidate) for sieve in sieves)), None)
            if held is None:
                passed.append(candidate)
                continue
            self._count(held.counted_as, 1)
            if held.fate is Fate.DONE:
                found.done.add(delivery)
            elif held.fate is Fate.AGAIN:
                found.failed.add(delivery)
            else:
                self._say(held.counted_as, "a message is refused", message=message.id, reason=held.reason)
                found.rejected.setdefault(delivery, held.reason)
        found.candidates = [candidate for candidate in passed if candidate.delivery not in found.failed]

    async def _apply(self, function: ApplyFunction, found: Findings) -> None:
        results = await function.apply([message for _, message in found.candidates])
        emitted: list[Candidate] = []
        for (delivery, message), result in zip(found.candidates, results, strict=True):
            if result.kind is Kind.EMIT and result.message is not None:
                emitted.append(Candidate(delivery, result.message))
            elif result.kind is Kind.SKIP:
                self._count("apply_skipped", 1)
            else:
                kind = f"apply_{result.kind.value}"
                self._count(kind, 1)
                self._say(kind, f"apply_function: {result.reason}", message=message.id)
                if result.kind is Kind.REJECTED:
                    found.rejected.setdefault(delivery, result.reason)
                elif result.kind is Kind.NOT_CALLED:  # not the message's fault
                    found.failed.add(delivery)
                else:
                    self._on_error(delivery, result.reason, found)
        found.candidates = [candidate for candidate in emitted if candidate.delivery not in found.failed]

    def _measured(self, found: Findings) -> list[Sized]:
        limit = self.max_payload_bytes
        if limit is None:
            return [Sized(message, 0) for _, message in found.candidates]
        kept: list[Candidate] = []
        measured: list[Sized] = []
        for delivery, message in found.candidates:
            one = sized(message)
            if one.size > limit and self.on_oversize != "split":
                reason = f"{one.size} bytes are more than max_payload_bytes ({limit})"
                name = "oversize_omitted" if self.on_oversize == "omit" else "oversize_rejected"
                self._count(name, 1)
                self._say(name, "a message is too large", message=message.id, bytes=one.size, limit=limit)
                if self.on_oversize == "reject":
                    found.rejected.setdefault(delivery, reason)
                    continue
                one = without_body(one)
            kept.append(Candidate(delivery, one.message))
            measured.append(one)
        found.candidates = kept
        return measured

    def _undecodable(self, delivery: Delivery, reason: str, found: Findings) -> None:
        self._count("undecodable", 1)
        self._say("undecodable", "a message can't be decoded", message=delivery.id, reason=reason)
        if self.decoder.named:
            self._on_error(delivery, reason, found)
        else:
            found.rejected[delivery] = reason

    def _on_error(self, delivery: Delivery, reason: str, found: Findings) -> None:
        if self.on_error == "reject":
            found.rejected.setdefault(delivery, reason)
        elif self.on_error == "release":
            found.failed.add(delivery)
        else:
            found.unmatched += 1

    def _match_failed(self, message: Message, error: Exception) -> None:
        self._count("match_error", 1)
        event = "match can't be evaluated on a message, which counts as no match"
        self._say("match", event, message=message.id, error=_name(error))

    def _say(self, kind: str, event: str, **details: object) -> None:
        """Log the first of its kind: a queue full of such messages must not fill the log."""
        if kind not in self._said:
            self._said.add(kind)
            text = f"{event}; more of this kind are counted, not logged"
            log.warning(text, watcher=self.watcher, match=self.matcher.expression, **details)


def _expect(argument: str, value: object, values: object) -> None:
    if value not in get_args(values):
        raise InvalidArgument(f"{argument}: expected one of {', '.join(get_args(values))}, got {value!r}")


def _name(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"

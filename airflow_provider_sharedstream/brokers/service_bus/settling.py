"""Telling Service Bus what became of messages: many side by side where that is possible, else one after another."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.service_bus.below import keep_from_reopening
from airflow_provider_sharedstream.brokers.service_bus.calls import Calls
from airflow_provider_sharedstream.brokers.service_bus.delivery import dead_letter_note
from airflow_provider_sharedstream.brokers.service_bus.errors import is_lock_lost
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost

SETTLES_AT_ONCE = 16
"""So many settlements wait for their answers at once: one after another, each would cost the way there and back."""

Answers = dict[Delivery, BaseException | None]
"""Of each delivery that was told: None, or why it failed."""


class Settling:
    """Settles over one receiver.

    :param receiver: the SDK's.
    :param calls: the receiver's.
    :param origin: where its messages come from, for the note on a dead letter.
    :param in_order: settle one after another, and nothing behind what failed.
    """

    def __init__(self, receiver: Any, calls: Calls, origin: str, *, in_order: bool) -> None:
        self._receiver = receiver
        self._calls = calls
        self._origin = origin
        self._in_order = in_order
        self._own_only = False
        self._side_by_side = False

    def receiver_opened(self) -> None:
        """Find out whether several may be told at once."""
        possible = keep_from_reopening(self._receiver, lambda: self._own_only)
        self._side_by_side = possible and not self._in_order

    async def tell(
        self, disposition: Disposition, deliveries: Sequence[Delivery], answers: Answers, *, own: bool
    ) -> None:
        """Settle, until all are told or the receiver breaks.

        :param answers: takes the answers, as they come.
        :param own: whether all came over this receiver. Others are settled by management requests, and those can't go
            side by side.
        """
        waiting = deque(deliveries)

        async def tell_on() -> None:
            while waiting:
                await self._tell_next(disposition, waiting, answers)

        at_once = min(SETTLES_AT_ONCE, len(waiting)) if own and self._side_by_side else 1
        self._own_only = own
        try:
            await self._together(tell_on() for _ in range(at_once))
        finally:
            self._own_only = False

    async def _tell_next(self, disposition: Disposition, waiting: deque[Delivery], answers: Answers) -> None:
        delivery = waiting.popleft()
        try:
            error = answers[delivery] = await self._tell(disposition, delivery)
        except Exception as mistake:
            # Ours: no reason to leave the others untold.
            error = answers[delivery] = mistake
            return
        finally:
            self._calls.steps += 1
        if error is not None and (self._in_order or not isinstance(error, LeaseLost)):
            # Service Bus is busy, or the link has broken: the rest would fare no better.
            answers.update((one, error) for one in waiting)
            waiting.clear()

    async def _tell(self, disposition: Disposition, delivery: Delivery) -> BaseException | None:
        """Settle one; return why it failed. A lost lock is no failure of a release."""
        message = delivery.handle.message
        if disposition is Disposition.ACCEPT:
            call = self._receiver.complete_message(message)
        elif disposition is Disposition.RELEASE:
            call = self._receiver.abandon_message(message)
        elif disposition is Disposition.DEAD_LETTER:
            reason, description = dead_letter_note(delivery, self._origin)
            call = self._receiver.dead_letter_message(message, reason=reason, error_description=description)
        else:
            raise NotImplementedError(f"Service Bus has no {disposition.value}")
        try:
            await call
        except Exception as error:
            if type(error).__name__ == "MessageAlreadySettled":
                return None
            if is_lock_lost(error):
                return None if disposition is Disposition.RELEASE else LeaseLost(str(error))
            self._calls.note(error)
            return error
        return None

    async def _together(self, workers: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run them all, until the receiver breaks."""
        running = {asyncio.create_task(worker, name="service-bus-settle") for worker in workers}
        pending = set(running)
        try:
            while pending and self._calls.trouble is None:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for worker in pending:
                worker.cancel()
            await asyncio.gather(*running, return_exceptions=True)

"""A link to Service Bus: one receiver of the Azure SDK, which is one AMQP connection.

A link that has broken stays broken; its owner opens another. The SDK would open a receiver again by itself, but not
safely for two callers at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from airflow_provider_sharedstream.brokers.service_bus.below import keep_from_reopening, renewed_together
from airflow_provider_sharedstream.brokers.service_bus.delivery import dead_letter_note
from airflow_provider_sharedstream.brokers.service_bus.errors import NoAnswer, NotConnected, is_busy, is_lock_lost
from airflow_provider_sharedstream.brokers.service_bus.turns import Turns
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost

OPEN_SECONDS = 30.0
ANSWER_SECONDS = 20.0
"""Longest silence of Service Bus while something waits for its answer."""
LOOK_SECONDS = 0.2
"""How long a receive looks for what is there before it waits, and gives way to nobody."""
PROBE_SECONDS = 60.0
"""After so long without a word from Service Bus it is asked for one: a dead connection looks like an empty queue."""
CLOSE_SECONDS = 5.0
CLOSE_GRACE_SECONDS = 1.0

SETTLES_AT_ONCE = 16
"""So many settlements wait for their answers at once: one after another, each would cost the way there and back."""

T = TypeVar("T")


class Link:
    """One receiver, used by one event loop.

    :param receiver: the SDK's, not open yet.
    :param origin: where its messages come from, for the note on a dead letter.
    :param in_order: settle one after another, and nothing behind what failed.
    """

    def __init__(self, receiver: Any, origin: str, *, in_order: bool = False) -> None:
        self.receiver = receiver
        self.trouble: BaseException | None = None
        """Why nothing can be done with it any more."""
        self._origin = origin
        self._in_order = in_order
        self._turns = Turns()
        self._calls: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._done = 0
        self._heard_at = time.monotonic()
        self._settles_mine = False
        self._side_by_side = False

    async def open(self, seconds: float = OPEN_SECONDS) -> None:
        """Connect, authenticate and attach.

        :param seconds: longest wait for it.
        """
        try:
            await self._call(self.receiver.__aenter__(), seconds)
        except BaseException:
            await self.close()
            raise
        self._side_by_side = keep_from_reopening(self.receiver, lambda: self._settles_mine)

    async def receive(self, most: int, seconds: float) -> list[Any]:
        """Return up to ``most`` messages, soon after the first has come; none after ``seconds``.

        Cancelled, it returns what came all the same.
        """
        deadline = time.monotonic() + seconds
        while True:
            async with self._turns.listening():
                found = await self._listen(most, LOOK_SECONDS)
                if not found and (left := deadline - time.monotonic()) > 0:
                    # The SDK's buffer is empty now, so nothing can be lost there when this gives way. And it has credit
                    # for one message only: what comes while nobody receives, the SDK gives back.
                    found = await self._listen(1, left, gives_way=True)
                if not found and time.monotonic() - self._heard_at > PROBE_SECONDS:
                    await self._call(self.receiver.peek_messages(1, timeout=ANSWER_SECONDS), ANSWER_SECONDS)
                    self._heard_at = time.monotonic()
            if found:
                self._heard_at = time.monotonic()
            if found or time.monotonic() >= deadline:
                return found

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> dict[Delivery, BaseException]:
        """Tell Service Bus; return what failed. A lost lock is no failure of a release."""
        answers: dict[Delivery, BaseException | None] = {}
        async with self._turns.speaking():
            try:
                await self._call(self._tell_all(disposition, deliveries, answers), ANSWER_SECONDS)
            except Exception as error:
                self.trouble = self.trouble or error
        # What has no answer, for whatever reason, is not settled.
        unanswered = self.trouble or NotConnected("Service Bus was not told")
        found = {delivery: answers.get(delivery, unanswered) for delivery in deliveries}
        return {delivery: error for delivery, error in found.items() if error is not None}

    async def renew(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        """Renew the locks of messages; return those that are lost."""
        lost: list[Delivery] = []
        async with self._turns.speaking():
            await self._call(self._renew_all(deliveries, lost), ANSWER_SECONDS)
        self._heard_at = time.monotonic()
        return lost

    async def renew_session(self) -> None:
        """Renew the lock of the receiver's session."""
        async with self._turns.speaking():
            await self._call(self.receiver.session.renew_lock(timeout=ANSWER_SECONDS), ANSWER_SECONDS)

    async def close(self) -> None:
        """Let go of the connection. Idempotent; goes on by itself when whoever waits for it is cancelled."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(), name="service-bus-close")
        await asyncio.wait((self._closing,))

    async def _close(self) -> None:
        self._turns.claimed.set()
        if self._calls:
            await asyncio.wait(self._calls, timeout=CLOSE_GRACE_SECONDS)
        await asyncio.gather(*(_give_up(call) for call in self._calls))
        closing = asyncio.create_task(self.receiver.close())
        await asyncio.wait((closing,), timeout=CLOSE_SECONDS)
        await _give_up(closing)

    async def _tell_all(
        self,
        disposition: Disposition,
        deliveries: Sequence[Delivery],
        answers: dict[Delivery, BaseException | None],
    ) -> None:
        waiting = deque(deliveries)

        async def tell_next() -> None:
            delivery = waiting.popleft()
            try:
                error = answers[delivery] = await self._tell(disposition, delivery)
            except Exception as mistake:
                # Ours: no reason to leave the others untold.
                error = answers[delivery] = mistake
                return
            finally:
                self._done += 1
            if error is not None and (self._in_order or not isinstance(error, LeaseLost)):
                # Service Bus is busy, or the link has broken: the rest would fare no better.
                answers.update((one, error) for one in waiting)
                waiting.clear()

        async def tell_on() -> None:
            while waiting:
                await tell_next()

        # What came over another link is settled by a management request, and those can't go side by side.
        self._settles_mine = all(delivery.handle.link is self for delivery in deliveries)
        try:
            side_by_side = self._settles_mine and self._side_by_side and not self._in_order
            await self._together([tell_on() for _ in range(min(SETTLES_AT_ONCE if side_by_side else 1, len(waiting)))])
        finally:
            self._settles_mine = False
        if self.trouble is None:
            self._heard_at = time.monotonic()

    async def _tell(self, disposition: Disposition, delivery: Delivery) -> BaseException | None:
        """Settle one; return why it failed."""
        message = delivery.handle.message
        if disposition is Disposition.ACCEPT:
            call = self.receiver.complete_message(message)
        elif disposition is Disposition.RELEASE:
            call = self.receiver.abandon_message(message)
        elif disposition is Disposition.DEAD_LETTER:
            reason, description = dead_letter_note(delivery, self._origin)
            call = self.receiver.dead_letter_message(message, reason=reason, error_description=description)
        else:
            raise NotImplementedError(f"Service Bus has no {disposition.value}")
        try:
            await call
        except Exception as error:
            kind = type(error).__name__
            if kind == "MessageAlreadySettled":
                return None
            if kind == "MessageLockLostError":
                return None if disposition is Disposition.RELEASE else LeaseLost(str(error))
            self._note(error)
            return error
        return None

    async def _together(self, workers: Iterable[Coroutine[Any, Any, None]]) -> None:
        """Run them all, until the link breaks."""
        running = {asyncio.create_task(worker, name="service-bus-settle") for worker in workers}
        pending = set(running)
        try:
            while pending and self.trouble is None:
                _, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for worker in pending:
                worker.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _renew_all(self, deliveries: Sequence[Delivery], lost: list[Delivery]) -> None:
        # What was settled while this waited for its turn has no token any more.
        held = [delivery for delivery in deliveries if delivery.handle.message.lock_token is not None]
        if await renewed_together(self.receiver, [one.handle.message for one in held], ANSWER_SECONDS):
            return
        for delivery in held:
            try:
                await self.receiver.renew_message_lock(delivery.handle.message, timeout=ANSWER_SECONDS)
            except Exception as error:
                if not is_lock_lost(error):
                    raise
                lost.append(delivery)
            self._done += 1

    def _start(self, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a call of the SDK in a task of its own, so that it can be ended."""
        if self._closing is not None or self.trouble is not None:
            call.close()
            raise NotConnected(f"the link to Service Bus has broken: {self.trouble}" if self.trouble else "closed")
        task = asyncio.create_task(call, name="service-bus-call")
        self._calls.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            call.exception()

    async def _call(self, call: Coroutine[Any, Any, T], seconds: float) -> T:
        """Return what a call of the SDK returns.

        :param seconds: longest time in which nothing gets done.
        """
        task = self._start(call)
        try:
            done = -1
            while not task.done() and done != self._done:
                done = self._done
                await asyncio.wait((task,), timeout=seconds)
            in_time = task.done()
        finally:
            await _give_up(task)
        return self._result(task, in_time, seconds)

    async def _listen(self, most: int, seconds: float, *, gives_way: bool = False) -> list[Any]:
        """Receive up to ``most`` messages.

        :param gives_way: ends when somebody claims the link.
        """
        task = self._start(self.receiver.receive_messages(max_message_count=most, max_wait_time=seconds))
        claim = asyncio.create_task(self._turns.claimed.wait())
        limit = seconds + ANSWER_SECONDS
        try:
            watched = (task, claim) if gives_way else (task,)
            await asyncio.wait(watched, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not gives_way:
                # It has taken messages out of the SDK's buffer, perhaps.
                await asyncio.wait((task,), timeout=CLOSE_GRACE_SECONDS)
            await _give_up(task, LOOK_SECONDS)
            if task.done() and not task.cancelled() and task.exception() is None and task.result():
                return list(task.result())
            raise
        finally:
            claim.cancel()
        if gives_way and self._turns.claimed.is_set():
            await _give_up(task, LOOK_SECONDS)
            if task.cancelled():
                return []
        in_time = task.done()
        await _give_up(task)
        return list(self._result(task, in_time, limit))

    def _result(self, task: asyncio.Task[T], in_time: bool, seconds: float) -> T:
        if not in_time:
            self.trouble = self.trouble or NoAnswer(f"Service Bus has not answered for {seconds:.0f} s")
            raise self.trouble
        if task.cancelled():
            raise NotConnected("the link was closed under a call")
        if (error := task.exception()) is None:
            return task.result()
        self._note(error)
        raise NotConnected(f"the link was closed under a call: {error}") if self._closing is not None else error

    def _note(self, error: BaseException) -> None:
        """Note that the link has broken, where ``error`` says so."""
        if not is_busy(error) and type(error).__name__ != "MessageLockLostError":
            self.trouble = self.trouble or error


async def _give_up(call: asyncio.Task[Any], seconds: float = 2.0) -> None:
    """End a call. Before Python 3.12, ``asyncio.wait_for``, which the SDK uses throughout, may swallow a cancellation.

    :param seconds: before it is cancelled once more: the SDK lets go of what it has opened half way, unless it is
        cancelled in that, too.
    """
    for _ in range(2):
        if not call.done():
            call.cancel()
            await asyncio.wait((call,), timeout=seconds)

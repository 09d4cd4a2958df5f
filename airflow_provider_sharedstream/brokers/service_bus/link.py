"""A link to Service Bus: one receiver of the Azure SDK, which is one AMQP connection.

A link that has broken stays broken; its owner opens another. The SDK would open a receiver again by itself, but not
safely for two callers at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

from airflow_provider_sharedstream.brokers.service_bus.below import renewed_together
from airflow_provider_sharedstream.brokers.service_bus.calls import ANSWER_SECONDS, CLOSE_GRACE_SECONDS, Calls, give_up
from airflow_provider_sharedstream.brokers.service_bus.errors import NotConnected, is_lock_lost
from airflow_provider_sharedstream.brokers.service_bus.settling import Answers, Settling
from airflow_provider_sharedstream.brokers.service_bus.turns import Turns
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition

OPEN_SECONDS = 30.0
LOOK_SECONDS = 0.2
"""How long a receive looks for what is there before it waits, and gives way to nobody."""
PROBE_SECONDS = 60.0
"""After so long without a word from Service Bus it is asked for one: a dead connection looks like an empty queue."""
CLOSE_SECONDS = 5.0


class Link:
    """One receiver, used by one event loop.

    :param receiver: the SDK's, not open yet.
    :param origin: where its messages come from, for the note on a dead letter.
    :param in_order: settle one after another, and nothing behind what failed.
    """

    def __init__(self, receiver: Any, origin: str, *, in_order: bool = False) -> None:
        self.receiver = receiver
        self._calls = Calls()
        self._turns = Turns()
        self._settling = Settling(receiver, self._calls, origin, in_order=in_order)
        self._closing: asyncio.Task[None] | None = None
        self._heard_at = time.monotonic()

    @property
    def trouble(self) -> BaseException | None:
        """Why nothing can be done with it any more."""
        return self._calls.trouble

    def give_up_for(self, error: BaseException) -> None:
        """Take it for broken."""
        self._calls.trouble = self._calls.trouble or error

    async def open(self, seconds: float = OPEN_SECONDS) -> None:
        """Connect, authenticate and attach.

        :param seconds: longest wait for it.
        """
        try:
            await self._calls.make(self.receiver.__aenter__(), seconds)
        except BaseException:
            await self.close()
            raise
        self._settling.receiver_opened()

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
                    await self._calls.make(self.receiver.peek_messages(1, timeout=ANSWER_SECONDS), ANSWER_SECONDS)
                    self._heard_at = time.monotonic()
            if found:
                self._heard_at = time.monotonic()
            if found or time.monotonic() >= deadline:
                return found

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> dict[Delivery, BaseException]:
        """Tell Service Bus; return what failed. A lost lock is no failure of a release."""
        answers: Answers = {}
        own = all(delivery.handle.link is self for delivery in deliveries)
        async with self._turns.speaking():
            try:
                telling = self._settling.tell(disposition, deliveries, answers, own=own)
                await self._calls.make(telling, ANSWER_SECONDS)
            except Exception as error:
                self.give_up_for(error)
        if self.trouble is None:
            self._heard_at = time.monotonic()
        # What has no answer, for whatever reason, is not settled.
        unanswered = self.trouble or NotConnected("Service Bus was not told")
        found = {delivery: answers.get(delivery, unanswered) for delivery in deliveries}
        return {delivery: error for delivery, error in found.items() if error is not None}

    async def renew(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        """Renew the locks of messages; return those that are lost."""
        lost: list[Delivery] = []
        async with self._turns.speaking():
            await self._calls.make(self._renew_all(deliveries, lost), ANSWER_SECONDS)
        self._heard_at = time.monotonic()
        return lost

    async def renew_session(self) -> None:
        """Renew the lock of the receiver's session."""
        async with self._turns.speaking():
            await self._calls.make(self.receiver.session.renew_lock(timeout=ANSWER_SECONDS), ANSWER_SECONDS)

    async def close(self) -> None:
        """Let go of the connection. Idempotent; goes on by itself when whoever waits for it is cancelled."""
        if self._closing is None:
            self._calls.closed = True
            self._closing = asyncio.create_task(self._close(), name="service-bus-close")
        await asyncio.wait((self._closing,))

    async def _close(self) -> None:
        self._turns.claimed.set()
        await self._calls.end()
        closing = asyncio.create_task(self.receiver.close())
        await asyncio.wait((closing,), timeout=CLOSE_SECONDS)
        await give_up(closing)

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
            self._calls.steps += 1

    async def _listen(self, most: int, seconds: float, *, gives_way: bool = False) -> list[Any]:
        """Receive up to ``most`` messages.

        :param gives_way: ends when somebody claims the link.
        """
        task = self._calls.start(self.receiver.receive_messages(max_message_count=most, max_wait_time=seconds))
        claim = asyncio.create_task(self._turns.claimed.wait())
        limit = seconds + ANSWER_SECONDS
        try:
            watched = (task, claim) if gives_way else (task,)
            await asyncio.wait(watched, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not gives_way:
                # It has taken messages out of the SDK's buffer, perhaps.
                await asyncio.wait((task,), timeout=CLOSE_GRACE_SECONDS)
            await give_up(task, LOOK_SECONDS)
            if task.done() and not task.cancelled() and task.exception() is None and task.result():
                return list(task.result())
            raise
        finally:
            claim.cancel()
        if gives_way and self._turns.claimed.is_set():
            await give_up(task, LOOK_SECONDS)
            if task.cancelled():
                return []
        in_time = task.done()
        await give_up(task)
        return list(self._calls.result(task, limit, in_time=in_time))

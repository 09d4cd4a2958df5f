"""Streaming pull: what Pub/Sub pushes is held here until the machine asks for it.

Two tasks: one reads the call (to cancel a read ends the call, so nobody else does), one looks after it: it opens the
stream when somebody asks for messages, opens it again when the service has moved it, renews the leases of what is held,
and closes it in order.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from airflow_provider_sharedstream.brokers.pubsub.client import CALL_SECONDS, PubSubClient
from airflow_provider_sharedstream.brokers.pubsub.errors import NotConnected, code_of
from airflow_provider_sharedstream.brokers.pubsub.held import RENEW_AT, Held, HeldMessages
from airflow_provider_sharedstream.stream.waiting import wait_until_set

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""The service closes a stream on which the client says nothing for a minute."""
LIVED_SECONDS = 10.0
"""A stream that the service ends as unavailable after so long was moved, which happens to every stream; it is opened
again without further ado. One that ends sooner is a failure.
"""
QUIET_SECONDS = 600.0
"""A stream on which nothing came for so long is opened anew, lest it be one that was forgotten; before that the service
is asked something, lest it be the network that is silent.
"""
DRAIN_SECONDS = 2.0
"""How long a stream that was closed from here may take to end. One that is cut off instead leaves messages behind."""
WAITED_SECONDS = 0.001
"""From which on a read had to wait for the network."""


class Properties(NamedTuple):
    """What the latest response says of the subscription; it may change at any time."""

    exactly_once: bool = False
    ordered: bool = False


class PullStream:
    """The messages of one subscription, as they are pushed.

    :param client: the channel.
    :param path: full name of the subscription.
    :param lease_seconds: for how long each message is ours.
    :param max_messages: most messages that the service lets us have, held ones and those with the machine.
    :param max_bytes: it sends nothing more when those hold so many bytes.
    """

    def __init__(
        self, client: PubSubClient, path: str, *, lease_seconds: int, max_messages: int, max_bytes: int
    ) -> None:
        self._client = client
        self._path = path
        self._lease_seconds = lease_seconds
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        # The service moves what it knows of a stream to the next one with the same id.
        self._client_id = str(uuid.uuid4())
        self._held = HeldMessages(
            client, path, lease_seconds=lease_seconds, max_messages=max_messages, max_bytes=max_bytes
        )
        self._properties: Properties | None = None
        self._error: BaseException | None = None
        self._closing = False
        self._reopening = False
        self._draining = False
        self._asking = 0
        self._asked_at = float("-inf")
        self._opened_at = 0.0
        self._heard_at = 0.0
        self._news = asyncio.Event()
        """Set when there is something to take."""
        self._asked = asyncio.Event()
        """Set when somebody asks for messages."""
        self._turn = asyncio.Event()
        """Set when the stream has ended, or shall."""
        self._room = asyncio.Event()
        """Set when reading may go on."""
        self._keeper: asyncio.Task[None] | None = asyncio.create_task(self._keep(), name="pubsub-stream")

    @property
    def properties(self) -> Properties:
        """What the latest response says of the subscription."""
        return self._properties or Properties()

    async def take(self, most: int, wait_seconds: float) -> list[Held]:
        """Return up to ``most`` messages, in order; none after ``wait_seconds``. Being cancelled loses nothing.

        :raises Exception: what ended the stream, once all that came before is taken.
        """
        deadline = time.monotonic() + wait_seconds
        self._asking += 1
        self._asked.set()
        try:
            while True:
                self._news.clear()
                taken = self._held.take(most)
                if not self._held.is_full:
                    self._room.set()
                if taken:
                    return taken
                if self._error is not None:
                    raise self._error
                if self._closing:
                    raise NotConnected("the stream was closed")
                if (left := deadline - time.monotonic()) <= 0:
                    return []
                await wait_until_set(self._news, left)
        finally:
            self._asking -= 1
            self._asked_at = time.monotonic()

    def put_back(self, taken: Sequence[Held]) -> None:
        """Hold again what was taken and not used."""
        self._held.put_back(taken)

    def reopen(self) -> None:
        """Let the service count anew how much we have."""
        self._client_id = str(uuid.uuid4())
        self._reopening = True
        self._turn.set()

    async def close(self) -> None:
        """Close the stream in order, and give back what is held. Idempotent."""
        self._closing = True
        for event in (self._turn, self._news, self._room, self._asked):
            event.set()
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        try:
            await asyncio.wait((keeper,), timeout=2 * DRAIN_SECONDS)
        finally:
            keeper.cancel()
        await asyncio.wait((keeper,), timeout=DRAIN_SECONDS)
        await self._held.give_back()

    async def _keep(self) -> None:
        """Look after the stream until it is closed or ends with an error."""
        try:
            while not self._closing:
                self._asked.clear()
                if self._is_asked_for:
                    await self._run()
                else:
                    await self._asked.wait()
        except Exception as error:
            # What is held is handed out before this is said.
            self._error = error
        finally:
            self._news.set()

    @property
    def _is_asked_for(self) -> bool:
        """Whether somebody wants messages. After a lease in which nobody did, what is held is better off elsewhere."""
        return self._asking > 0 or time.monotonic() - self._asked_at < self._lease_seconds

    async def _run(self) -> None:
        """Open one stream and look after it until it ends."""
        self._reopening = self._draining = False
        call = await self._open()
        self._opened_at = self._heard_at = time.monotonic()
        reader = asyncio.create_task(self._read(call), name="pubsub-read")
        reader.add_done_callback(self._read_ended)
        try:
            await self._watch(call, reader)
            await self._end(call, reader)
        finally:
            call.cancel()
            reader.cancel()
        await asyncio.wait((reader,), timeout=DRAIN_SECONDS)
        if not self._is_asked_for:
            await self._held.give_back()

    def _read_ended(self, reader: asyncio.Task[None]) -> None:
        self._turn.set()
        if not reader.cancelled():
            reader.exception()  # who isn't asked logs it

    async def _open(self) -> Any:
        from google.pubsub_v1 import types

        call: Any = await self._client.subscriber.streaming_pull(
            retry=None, timeout=None, metadata=(("x-goog-request-params", f"subscription={self._path}"),)
        )
        first = types.StreamingPullRequest(
            subscription=self._path,
            client_id=self._client_id,
            stream_ack_deadline_seconds=self._lease_seconds,
            max_outstanding_messages=self._max_messages,
            max_outstanding_bytes=self._max_bytes,
        )
        try:
            await self._write(call, first)
        except BaseException:
            call.cancel()
            raise
        return call

    async def _write(self, call: Any, request: Any) -> None:
        """Write, one at a time. Where the call is over already, the reader has the reason."""
        try:
            await asyncio.wait_for(call.write(request), CALL_SECONDS)
        except asyncio.InvalidStateError:
            pass
        except asyncio.TimeoutError as error:
            raise NotConnected(f"Pub/Sub has taken nothing for {CALL_SECONDS:g} s") from error

    async def _read(self, call: Any) -> None:
        """Hold what comes, until the call ends."""
        import grpc

        # What lies in gRPC's buffers ages. Only a read that had to wait proves that nothing lay there before.
        since = time.monotonic()
        while True:
            while self._held.is_full and not self._draining:
                self._room.clear()
                await self._room.wait()
            asked_at = time.monotonic()
            response = await call.read()
            if response is grpc.aio.EOF:
                return
            self._heard_at = time.monotonic()
            if self._heard_at - asked_at > WAITED_SECONDS:
                since = self._heard_at
            raw = response._pb
            self._note(raw.subscription_properties)
            for received in raw.received_messages:
                self._held.add(Held(received, since))
            if raw.received_messages:
                self._news.set()

    def _note(self, said: Any) -> None:
        now = Properties(said.exactly_once_delivery_enabled, said.message_ordering_enabled)
        before, self._properties = self._properties, now
        if before is not None and now != before:
            log.info(
                "%s has been changed: exactly-once delivery is %s, message ordering is %s",
                self._path,
                *("on" if switch else "off" for switch in now),
            )

    async def _watch(self, call: Any, reader: asyncio.Task[None]) -> None:
        """Keep the stream and the leases of what is held alive, until the stream ends or shall end."""
        from google.pubsub_v1 import types

        step = min(HEARTBEAT_SECONDS, RENEW_AT * self._lease_seconds)
        beat_at = self._opened_at
        while not reader.done() and not self._closing and not self._reopening and self._is_asked_for:
            self._turn.clear()
            await wait_until_set(self._turn, step)
            now = time.monotonic()
            if now - beat_at >= HEARTBEAT_SECONDS:
                beat_at = now
                await self._write(call, types.StreamingPullRequest())
            if now - self._heard_at >= QUIET_SECONDS:
                await self._probe()
                return
            await self._held.renew()

    async def _probe(self) -> None:
        """Raise unless the service answers."""
        try:
            await self._client.look_at_subscription(self._path)
        except Exception as error:
            if code_of(error) != "PERMISSION_DENIED":
                raise

    async def _end(self, call: Any, reader: asyncio.Task[None]) -> None:
        """Let a stream end in order; raise what it ended with, unless that is nothing to speak of."""
        if reader.done():
            ended_by = None if reader.cancelled() else reader.exception()
            lived = time.monotonic() - self._opened_at >= LIVED_SECONDS
            if lived and (ended_by is None or code_of(ended_by) == "UNAVAILABLE"):
                log.debug("The stream of %s was moved: %s", self._path, ended_by)
                return
            raise ended_by or NotConnected("the stream was ended by the server")
        self._draining = True
        self._room.set()
        try:
            await asyncio.wait_for(call.done_writing(), DRAIN_SECONDS)
        except Exception as error:
            log.debug("Half-closing the stream of %s: %s", self._path, error)
        await asyncio.wait((reader,), timeout=DRAIN_SECONDS)

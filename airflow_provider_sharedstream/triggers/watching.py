"""What stands between Airflow's shared stream and a filter: it writes the receipts and keeps the cohort.

It works for this package's filter and for a user's own ``filter_shared_stream`` alike.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from airflow.triggers.base import TriggerEvent

from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.stream.cohort import cohort_of
from airflow_provider_sharedstream.stream.delivery import Batch, Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument, SourceUnavailable, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message
from airflow_provider_sharedstream.stream.receipts import Receipt

if TYPE_CHECKING:
    from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

log = logging.getLogger(__name__)

Filter = Callable[..., AsyncIterator[TriggerEvent]]


class WatchedBatch:
    """A batch as one watcher sees it: it iterates over messages.

    :param batch: the batch.
    :param deliveries: those of it that are for this watcher.
    :param receipt: the watcher's receipt on it.
    :param decoder: how the watcher wants bodies decoded.
    """

    def __init__(self, batch: Batch, deliveries: Sequence[Delivery], receipt: Receipt, decoder: Decoder) -> None:
        self.source = batch.source
        self.stream = batch.stream
        self.deliveries = deliveries
        self._all = len(deliveries) == len(batch)
        self.receipt = receipt
        self._decoder = decoder
        self._origins: dict[str, Delivery] = {}
        self.yielded = False

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages; one that can't be decoded is rejected with its reason and passed over."""
        for delivery in self.deliveries:
            try:
                decoded = self._decoder.messages_of(delivery)
            except UndecodableMessage as error:
                self.receipt.reject(delivery, str(error))
                continue
            for message in decoded:
                self._origins[message.id] = delivery
                yield message

    def __len__(self) -> int:
        return len(self.deliveries)

    def reject(self, message: Message, reason: str) -> None:
        """Reject one message for good; the others of the batch are not affected.

        :raises KeyError: the message is not of this batch.
        """
        self.receipt.reject(self._origins[message.id], reason)

    def conclude(self) -> None:
        """Note that the watcher has moved past the batch."""
        if self.yielded and not self.receipt.matched and not self.receipt.matched_all:
            # A user's own filter doesn't say which messages its event holds: all of them may be in it.
            self.receipt.match_all()
        if self.receipt.matched_all and not self._all:
            self.receipt.matched_all = False
            self.receipt.matched.update(self.deliveries)
        self.receipt.come_back()


class WatchedStream:
    """The shared stream as one watcher sees it; a receipt on every batch that passes.

    :param shared_stream: Airflow's stream of batches.
    :param trigger: the watcher.
    """

    def __init__(self, shared_stream: AsyncIterator[Any], trigger: BrokerEventTrigger) -> None:
        self._batches = shared_stream
        self._trigger = trigger
        self._watcher = trigger.watcher_name
        self._trigger_id = trigger.trigger_id
        self._current: WatchedBatch | None = None
        # The trigger has to hold on to its cohort: the registry doesn't.
        self._cohort = cohort_of(trigger.shared_stream_key())
        trouble = trigger.trouble()
        self._decoder = trigger.decoder if trouble is None else Decoder()
        introduction = trigger.introduction() if trouble is None else None
        self._token = self._cohort.join(self._watcher, trouble, introduction, trigger_id=self._trigger_id)

    def __aiter__(self) -> WatchedStream:
        return self

    async def __anext__(self) -> WatchedBatch:
        while True:
            if self._current is not None:
                # Only now is it certain that the runner has taken over what was yielded.
                self._current.conclude()
                self._current = None
            batch = await self._batches.__anext__()
            own = self._trigger.own_deliveries(batch.deliveries)
            self._current = WatchedBatch(batch, own, Receipt(batch, self._watcher, self._trigger_id), self._decoder)
            if await self._can_be_decoded(own, self._current.receipt):
                return self._current

    async def _can_be_decoded(self, deliveries: Sequence[Delivery], receipt: Receipt) -> bool:
        """Decode what can't be decoded while iterating; where that can't be done now, all of it comes again."""
        if self._decoder.needs_preparation:
            try:
                await self._decoder.prepare(deliveries)
            except (SourceUnavailable, InvalidArgument) as error:
                log.warning("%s can't decode now, its messages come again: %s", self._watcher, error)
                for delivery in deliveries:
                    receipt.fail(delivery)
                return False
        return True

    def note_event(self) -> None:
        """Note that the filter yields an event of the batch that it is on."""
        if self._current is not None:
            self._current.yielded = True

    def leave(self) -> None:
        """Note that the watcher listens no more."""
        self._cohort.leave(self._token)


def watched(own_filter: Filter) -> Filter:
    """Wrap a ``filter_shared_stream``, so that it gets a :class:`WatchedStream`."""

    @functools.wraps(own_filter)
    async def filter_shared_stream(
        self: BrokerEventTrigger, shared_stream: AsyncIterator[Any]
    ) -> AsyncGenerator[TriggerEvent, None]:
        if self.filtering:
            # Called through super() from a filter that is watched, maybe with a stream of the user's own making.
            async with aclosing(own_filter(self, shared_stream)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
            return
        stream = WatchedStream(shared_stream, self)
        try:
            async with aclosing(own_filter(self, stream)) as events:  # type: ignore[type-var]
                while True:
                    self.filtering = True
                    try:
                        event = await events.__anext__()
                    except StopAsyncIteration:
                        return
                    finally:
                        self.filtering = False
                    stream.note_event()
                    yield event
        finally:
            stream.leave()

    filter_shared_stream.is_watched = True  # type: ignore[attr-defined]
    return filter_shared_stream


def is_watched(filter_shared_stream: Filter) -> bool:
    """Whether a filter gets a :class:`WatchedStream`."""
    return getattr(filter_shared_stream, "is_watched", False)

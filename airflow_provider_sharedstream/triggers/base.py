"""What all triggers have in common: the stream's key, storage, the producer, the filter."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from airflow.triggers.shared_stream import SharedStreamManager, SharedStreamProducer

from airflow_provider_sharedstream import options
from airflow_provider_sharedstream.messages.decode import Decoder
from airflow_provider_sharedstream.messages.match import Matcher
from airflow_provider_sharedstream.messages.payload import MessagesEvent, event_payload
from airflow_provider_sharedstream.messages.pipeline import MessagePipeline
from airflow_provider_sharedstream.stream.cohort import cohort_of
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument, error_text
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.stream.roll_call import COHORT_TIMEOUT_SECONDS
from airflow_provider_sharedstream.stream.settings import StreamSettings
from airflow_provider_sharedstream.stream.unusable import UnusableConsumer
from airflow_provider_sharedstream.triggers.arguments import COMMON, REQUIRED, Argument, mistakes
from airflow_provider_sharedstream.triggers.mark import MARK, StreamIdentity, is_ours, without_mark
from airflow_provider_sharedstream.triggers.pipelines import build_pipeline, build_sieves, report
from airflow_provider_sharedstream.triggers.watching import WatchedBatch, is_watched, watched

log = logging.getLogger(__name__)

JOIN_GRACE_SECONDS = 3.0
"""Default of ``[sharedstream] join_grace_seconds``."""


class BrokerEventTrigger(BaseEventTrigger):
    """A watcher's trigger on a broker.

    A subclass per source names the producer, declares its arguments and gives them a typed constructor. A user may
    subclass one of those and override :meth:`filter_shared_stream` as Airflow's documentation shows it: each raw event
    iterates over :class:`Message`; ``reject_shared_stream_event()`` rejects all of it for this watcher, and
    ``event.reject(message, reason)`` one message.
    """

    producer_class: ClassVar[type[BrokerStreamProducer]]
    ARGUMENTS: ClassVar[Mapping[str, Argument]] = {}
    """The source's own arguments; one of the common names here replaces the common one."""
    shows_put_back: ClassVar[bool] = False
    """Whether what somebody puts back at the broker is told from a repeat by its id or :meth:`history_of`, and so after
    a restart too.
    """
    instead_of_durable: ClassVar[str] = "leave it out, and repeats are told from memory"
    """Where it isn't: the way out."""
    filtering = False
    """Whether a filter of this trigger is at work just now: then another one is called by it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # A mixin's too.
        if not is_watched(cls.filter_shared_stream):
            cls.filter_shared_stream = watched(cls.filter_shared_stream)  # type: ignore[method-assign]
        if "__init__" in cls.__dict__ and not is_ours(cls.__module__):
            cls.__init__ = without_mark(cls.__init__)  # type: ignore[method-assign]

    def __init__(self, common: Mapping[str, Any], **own: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        allowed = self.allowed_arguments()
        given = {**own, **common}
        given.pop(MARK, None)
        self.arguments: dict[str, Any] = {name: given.get(name, argument.default) for name, argument in allowed.items()}
        """Every argument by its name, defaults included; one that is missing is :data:`REQUIRED`."""
        self.unknown_arguments = {name: value for name, value in given.items() if name not in allowed}
        """What was stored by another version and means nothing to this one."""

    @classmethod
    def allowed_arguments(cls) -> Mapping[str, Argument]:
        """Return the source's arguments and the common ones."""
        return {**cls.ARGUMENTS, **{name: arg for name, arg in COMMON.items() if name not in cls.ARGUMENTS}}

    def check(self) -> Iterator[str]:
        """Yield mistakes that no single argument shows. For subclasses."""
        return iter(())

    def validate(self, *, unknown_too: bool = True) -> None:
        """Check all arguments.

        :param unknown_too: whether an argument that this version doesn't know is a mistake: in a Dag file it is, in
            storage it was written by another version.
        :raises InvalidArgument: names every argument that is wrong, what came, and what is expected.
        """
        unknown = self.unknown_arguments if unknown_too else {}
        found = list(mistakes(self.allowed_arguments(), {**self.arguments, **unknown}))
        if not found:
            found = [*self._check_repeats(), *self.check()]
        said = {text.partition("=")[0] for text in found}
        for names, build in (
            ({"decode", "unwrap"}, lambda: self.decoder),
            ({"match"}, lambda: Matcher(self.arguments["match"])),
            ({"dedupe_window_seconds", "dedupe_key"}, lambda: build_sieves(self)),
        ):
            if names & said:
                continue
            try:
                build()
            except InvalidArgument as error:
                found.append(str(error))
        if found:
            raise InvalidArgument(f"{type(self).__name__}: " + "; ".join(dict.fromkeys(found)))

    def _check_repeats(self) -> Iterator[str]:
        for name in ("dedupe_key", "dedupe_durable"):
            if self.arguments[name] and self.arguments["dedupe_window_seconds"] is None:
                yield f"{name}={self.arguments[name]!r}: it has no effect without dedupe_window_seconds"
        if self.arguments["dedupe_durable"] and not self.shows_put_back:
            yield (
                "dedupe_durable=True: after a restart nothing here tells a repeat from what somebody put back on "
                f"purpose, which must make an event; {self.instead_of_durable}"
            )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments that differ from their defaults, as plain JSON in a fixed order.

        :raises InvalidArgument: an argument is wrong; in the Dag file only, not in the triggerer.
        """
        if self.trigger_id is None:
            self.validate()
        allowed = self.allowed_arguments()
        stored = {name: _plain(value) for name, value in self.arguments.items() if value != allowed[name].default}
        stored.update((name, _plain(value)) for name, value in sorted(self.unknown_arguments.items()))
        if not is_ours(type(self).__module__):
            stored[MARK] = self.stream_identity().mark()
        return f"{type(self).__module__}.{type(self).__qualname__}", stored

    def shared_stream_key(self) -> tuple[str, str, str]:
        """Return the whole configuration of the producer: watchers with an equal one share a connection."""
        allowed = self.allowed_arguments()
        shared = {
            name: value
            for name, value in self.arguments.items()
            if allowed[name].scope != "filter" and value != allowed[name].default
        }
        producer = f"{self.producer_class.__module__}.{self.producer_class.__qualname__}"
        plain = {name: _plain(value) for name, value in shared.items()}
        return ("sharedstream", producer, json.dumps(plain, sort_keys=True, default=repr))

    @property
    def source_name(self) -> Hashable:
        """What names the source: the required arguments, or all that reach it where none is required. Of sources that
        are different it may be equal, at no harm. For subclasses that can name one source in several ways.
        """
        required = [name for name, argument in self.ARGUMENTS.items() if argument.default is REQUIRED]
        named = required or [name for name, argument in self.ARGUMENTS.items() if argument.scope == "source"]
        return tuple(str(self.arguments[name]) for name in named)

    def stream_identity(self) -> StreamIdentity:
        """Return what the triggerers' supervisors keep the watchers of one source together by."""
        return StreamIdentity.of(self.shared_stream_key(), (self.producer_class.__name__, self.source_name))

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> SharedStreamProducer:
        """Build the producer. Wrong arguments don't raise here: the stream is held and says why.

        What only the filter of the watcher that happens to be first needs is no matter of the stream's.
        """
        trigger = cls(**kwargs)
        shared = {name: one for name, one in trigger.allowed_arguments().items() if one.scope != "filter"}
        source = {name: trigger.arguments[name] for name, one in shared.items() if one.scope == "source"}
        key = trigger.shared_stream_key()
        cohort = cohort_of(key)
        wrong = list(mistakes(shared, {name: trigger.arguments[name] for name in shared}))
        if not wrong:
            try:
                settings = trigger._stream_settings()
                return cls.producer_class.from_arguments(source, settings, cohort=cohort, description=key[2])
            except Exception as error:
                wrong = [error_text(error)]
        kind = str(getattr(cls.producer_class.consumer_class, "source", "none"))
        consumer = UnusableConsumer("; ".join(wrong), source=kind, stream=key[2])
        return BrokerStreamProducer(consumer, cohort=cohort, description=key[2])

    async def filter_shared_stream(self, shared_stream: AsyncIterator[Any]) -> AsyncIterator[TriggerEvent]:
        """Yield an event per batch, with the messages that are this watcher's own; several where one is too large."""
        if self.unknown_arguments:
            names = ", ".join(self.unknown_arguments)
            log.warning("%s: arguments unknown to this version are ignored: %s", self.watcher_name, names)
        found: Counter[str] = Counter()
        pipeline = None if self.trouble() else self.pipeline(found)
        batch: WatchedBatch
        async for batch in shared_stream:
            if pipeline is None:
                for delivery in batch.deliveries:
                    batch.receipt.fail(delivery)
                continue
            for group in await pipeline.groups_for(batch.deliveries, batch.receipt):
                stamp = pipeline.stamp(group)
                yield MessagesEvent(payload=event_payload(batch.source, batch.stream, group, stamp))
            report(batch, found)

    filter_shared_stream = watched(filter_shared_stream)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Run alone, on a stream of its own. The triggerer never does: this is for trying a trigger in a test.

        An event counts as stored when the next one is asked for.
        """
        manager = SharedStreamManager()
        key = self.shared_stream_key()
        stream = manager.subscribe(trigger_id=0, trigger=self, key=key)
        try:
            async with aclosing(self.filter_shared_stream(stream)) as events:  # type: ignore[type-var]
                async for event in events:
                    stored_as = manager.bind_pending_event(trigger_id=0, key=key)
                    yield event
                    if stored_as is not None:
                        manager.confirm_persisted([stored_as])
        finally:
            await manager.unsubscribe(0, key)

    def trouble(self) -> str | None:
        """Return why this trigger can't judge messages in this process, or None. For the triggerer, where nothing may
        raise.
        """
        try:
            self.validate(unknown_too=False)
            self.pipeline().validate()
        except InvalidArgument as error:
            return str(error)
        except Exception as error:
            return f"{type(self).__name__}: its arguments can't be checked: {error_text(error)}"
        return None

    def pipeline(self, found: Counter[str] | None = None) -> MessagePipeline:
        """Build this watcher's way from deliveries to messages.

        :param found: counts what was found, by the names of ``messages.pipeline.COUNTS``.
        """
        return build_pipeline(self, Counter() if found is None else found)

    @property
    def decoder(self) -> Decoder:
        """How this watcher wants bodies decoded."""
        return Decoder(self.arguments["decode"], self.arguments["unwrap"])

    def introduction(self) -> Hashable:
        """Return what the source's adapter is told of this watcher; None where it needs to know nothing."""
        return None

    def own_deliveries(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return those of a batch that are for this watcher at all. For a source whose watchers stand at different
        places.
        """
        return deliveries

    def history_of(self, delivery: Delivery) -> str:
        """Return the history in which this watcher gets ``delivery``: where somebody sets a source's position another
        one begins. For a source that shows under its old id what was put back.
        """
        return ""

    @property
    def asset_names(self) -> tuple[str, ...]:
        """The assets that this trigger watches for, in alphabetical order; none outside the triggerer."""
        # Airflow says it in no other way.
        return tuple(sorted(getattr(self.asset_state_store, "_by_name", None) or ()))

    @property
    def watcher_name(self) -> str:
        """The assets that this trigger watches for, and its number: what a person can find in the UI."""
        assets = self.asset_names
        number = f"trigger {self.trigger_id}"
        return f"{', '.join(assets)} ({number})" if assets else number

    def _stream_settings(self) -> StreamSettings:
        from airflow.configuration import conf

        scopes = self.allowed_arguments()
        return StreamSettings(
            **{name: value for name, value in self.arguments.items() if scopes[name].scope == "stream"},
            ack_timeout_seconds=conf.getfloat("triggerer", "shared_stream_ack_timeout"),
            subscriber_queue_size=conf.getint("triggerer", "shared_stream_subscriber_queue_size"),
            join_grace_seconds=options.seconds("join_grace_seconds", JOIN_GRACE_SECONDS),
            cohort_timeout_seconds=options.seconds("cohort_timeout_seconds", COHORT_TIMEOUT_SECONDS),
        )


def _plain(value: Any) -> Any:
    """Return ``value`` as it comes back from storage, in one form whichever way it was written: 7 for 7.0, keys sorted.

    What isn't JSON stays as it is.
    """
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return json.loads(json.dumps(value, sort_keys=True, allow_nan=False))
    except (TypeError, ValueError):
        return value

"""From a delivery to messages: once per delivery and way of decoding, however many watchers look at it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple

from msgspec import Struct

from airflow_provider_sharedstream.messages import bodies
from airflow_provider_sharedstream.messages.bodies import Decoded, short_text
from airflow_provider_sharedstream.messages.callables import is_async, resolve
from airflow_provider_sharedstream.messages.cloud_events import require_sdk
from airflow_provider_sharedstream.messages.content_type import Declared, declared_by
from airflow_provider_sharedstream.messages.payload import base64_text, described, storable, visible_text
from airflow_provider_sharedstream.messages.registry import DEFAULT_CONNECTION, registry_of, require_client
from airflow_provider_sharedstream.messages.unwrap import check_names, unwrapped
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

BODY_ENCODING = "body_encoding"
"""Attribute that says ``base64`` where the body is bytes in base64."""
HEADER_ENCODING = "header_encoding"
"""Attribute that names the headers that are bytes in base64: ``{"trace": "base64"}``."""
KEY_ENCODING = "key_encoding"
"""Attribute that says ``base64`` where the key is bytes in base64."""

_WAYS = {
    "auto": bodies.decode_auto,
    "json": bodies.decode_json,
    "text": bodies.decode_text,
    "bytes": bodies.decode_bytes,
}


_REGISTRY = "schema_registry"


class _Failure(NamedTuple):
    """What is kept of a failure, so that the next watcher doesn't run into it again."""

    reason: str


class _Known(Struct, gc=False):
    """What one way of decoding has made of a delivery, and before it others. As small as can be, and nothing for the
    garbage collector: there is one for each message.
    """

    spec: Hashable
    made: tuple[Message, ...] | _Failure
    others: _Known | None


class Decoder:
    """Turns deliveries into messages.

    :param decode: ``auto`` follows the content type, then the bytes: JSON if they are JSON, else UTF-8 text, else
        base64 with the attribute ``body_encoding``. ``json``, ``text`` and ``bytes`` (base64) insist. A dotted path
        names a callable that takes the bytes and the headers and returns the body; it runs in the event loop and must
        be quick.
        ``schema_registry``, or with a colon and a connection id, decodes by a Confluent-compatible schema registry,
        and needs :meth:`prepare`.
    :param unwrap: the envelopes to be taken off, outermost first: names of :data:`~.unwrap.ENVELOPES`. A message that
        isn't in the envelope stays as it is.
    :raises InvalidArgument: of the wrong type, or names that are unknown.
    """

    __slots__ = ("_registry", "_way", "decode", "spec", "unwrap")

    def __init__(self, decode: str = "auto", unwrap: str | Sequence[str] = ()) -> None:
        self.unwrap = check_names(unwrap)
        name, colon, conn_id = decode.partition(":") if isinstance(decode, str) else ("", "", "")
        self._registry = (conn_id if colon else DEFAULT_CONNECTION) if name == _REGISTRY else None
        if not (name in _WAYS or "." in name or self._registry) or (colon and self._registry is None):
            ways = ", ".join([*_WAYS, _REGISTRY, f"{_REGISTRY}:connection_id"])
            raise InvalidArgument(
                f"decode: expected {ways} or a callable's dotted path (package.module.name), got {decode!r}"
            )
        self.decode = decode
        self.spec = (decode, self.unwrap)
        """What tells one way of decoding from another; deliveries keep their messages under it."""
        self._way = _WAYS.get(decode)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Decoder) and self.spec == other.spec

    def __hash__(self) -> int:
        return hash(self.spec)

    @property
    def named(self) -> bool:
        """Whether the user asked for a way of decoding, which can fail on what ``auto`` would take."""
        return self.decode != "auto"

    def validate(self) -> None:
        """Import what ``decode`` and ``unwrap`` name.

        :raises InvalidArgument: something can't be imported, can't be called, or is asynchronous.
        """
        if "cloudevents" in self.unwrap:
            require_sdk()
        if self._registry is not None:
            require_client()
        if self._way is None and self._registry is None and is_async(resolve(self.decode, "decode")):
            raise InvalidArgument(f"decode: {self.decode} is async; a decoder must be a plain function")

    @property
    def needs_preparation(self) -> bool:
        """Whether :meth:`prepare` has to come before :meth:`messages_of`."""
        return self._registry is not None

    async def prepare(self, deliveries: Sequence[Delivery]) -> None:
        """Decode what can't be decoded without waiting for somebody; only where :attr:`needs_preparation`.

        :raises SourceUnavailable: the schema registry can't be used now: not the messages' fault.
        :raises InvalidArgument: its client isn't installed.
        """
        if self._registry is None:
            return
        registry = registry_of(self._registry)
        async with registry.lock:
            for delivery in deliveries:
                if self._known(delivery) is not None:
                    continue
                try:
                    declared = declared_by(delivery.headers, delivery.attributes)
                    body = delivery.body
                    made = None if body is None else await registry.decode(bodies.raw_bytes(body, declared))
                    self._keep(delivery, self._messages(delivery, Decoded(made)))
                except UndecodableMessage as error:
                    self._keep(delivery, _Failure(str(error)))

    def messages_of(self, delivery: Delivery) -> tuple[Message, ...]:
        """Return the messages of ``delivery``; decoded at the first call only.

        :raises UndecodableMessage: with the reason; again at every call.
        :raises InvalidArgument: what ``decode`` names can't be imported: not the message's fault.
        """
        made = self._known(delivery)
        if made is None:
            if self._registry is not None:
                raise RuntimeError(f"decode={self.decode!r} decodes in prepare()")
            try:
                made = self._messages(delivery)
            except UndecodableMessage as error:
                made = _Failure(str(error))
            self._keep(delivery, made)
        if isinstance(made, _Failure):
            raise UndecodableMessage(made.reason)
        return made

    def _known(self, delivery: Delivery) -> tuple[Message, ...] | _Failure | None:
        known: _Known | None = delivery.decoded
        while known is not None and known.spec != self.spec:
            known = known.others
        return None if known is None else known.made

    def _keep(self, delivery: Delivery, made: tuple[Message, ...] | _Failure) -> None:
        delivery.decoded = _Known(self.spec, made, delivery.decoded)

    def _messages(self, delivery: Delivery, decoded: Decoded | None = None) -> tuple[Message, ...]:
        message = self._message(delivery, decoded)
        return unwrapped(message, self.unwrap, self._body) if self.unwrap else (message,)

    def _message(self, delivery: Delivery, decoded: Decoded | None) -> Message:
        # Each asked for once: some adapters make them on demand.
        headers, attributes = delivery.headers, delivery.attributes
        declared = declared_by(headers, attributes)
        body, encoding = decoded or self._body(delivery.body, declared, headers)
        notes: dict[str, Any] = {}
        headers = _storable_headers(headers, notes)
        if encoding is not None:
            notes[BODY_ENCODING] = encoding
        key = delivery.key
        if key is not None and not (type(key) is str and key.isascii()):
            key = _storable_key(key, notes)
        if attributes and not _is_plain(attributes):
            attributes = described(attributes)
        identity = delivery.id
        published_at = delivery.published_at
        return Message(
            identity if identity.isascii() else visible_text(identity),
            body,
            headers,
            key,
            published_at if published_at is None or published_at.tzinfo is timezone.utc else _utc(published_at),
            delivery.delivery_count or None,
            {**attributes, **notes} if notes else attributes,
        )

    def _body(self, body: bytes | str | None, declared: Declared, headers: Mapping[str, Any]) -> Decoded:
        if body is None:
            return Decoded(None)
        if self._registry is not None:
            return bodies.decode_auto(body, declared)  # what an envelope holds
        if self._way is not None:
            return self._way(body, declared)
        function = resolve(self.decode, "decode")
        try:
            return Decoded(storable(function(bodies.raw_bytes(body, declared), headers)))
        except UndecodableMessage:
            raise
        except Exception as error:
            raise UndecodableMessage(f"{self.decode} raised {type(error).__name__}: {short_text(error)}") from error


def _is_plain(values: Mapping[Any, Any]) -> bool:
    """Whether all of ``values`` is storable at a glance. Most headers and attributes are."""
    if type(values) is not dict:
        return False
    for name, value in values.items():
        if type(name) is not str or not name.isascii():
            return False
        kind = type(value)
        if kind is str:
            if not value.isascii():
                return False
        elif kind is int:
            if not -(2**63) <= value < 2**63:
                return False
        elif value is not None and kind is not bool:
            return False
    return True


def _storable_headers(headers: Mapping[Any, Any], notes: dict[str, Any]) -> Mapping[str, Any]:
    if not headers or _is_plain(headers):
        return headers
    made: dict[str, Any] = {}
    encoded: dict[str, str] = {}
    for name, value in headers.items():
        text = _name(name)
        if isinstance(value, (bytes, bytearray, memoryview)):
            value, encoding = _text_or_base64(bytes(value))
            if encoding is not None:
                encoded[text] = encoding
        made[text] = described(value)
    if encoded:
        notes[HEADER_ENCODING] = encoded
    return made


def _name(name: Any) -> str:
    if isinstance(name, (bytes, bytearray)):
        return name.decode("utf-8", "backslashreplace")
    return visible_text(name if isinstance(name, str) else str(name))


def _storable_key(key: Any, notes: dict[str, Any]) -> str:
    if isinstance(key, (bytes, bytearray, memoryview)):
        text, encoding = _text_or_base64(bytes(key))
        if encoding is not None:
            notes[KEY_ENCODING] = encoding
        return text
    return _name(key)


def _text_or_base64(data: bytes) -> tuple[str, str | None]:
    try:
        return data.decode("utf-8"), None
    except UnicodeDecodeError:
        return base64_text(data), "base64"


def _utc(moment: datetime) -> datetime | None:
    try:
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (OverflowError, ValueError):  # the first or last day that Python knows, in another zone
        return None

"""What a client sent, as the sections of an AMQP message, kept byte for byte so that every type survives."""

from __future__ import annotations

from typing import Any

from proton import Data, Described, symbol, timestamp, uint, ulong

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, DATA = range(0x70, 0x76)
"""Descriptors of the sections in the order in which they stand; behind DATA come the other bodies and the footer."""

SCHEDULED_ENQUEUE_TIME = symbol("x-opt-scheduled-enqueue-time")
_GROUP_ID = 10
_MESSAGE_STARTS = tuple(bytes((0x00, 0x53, code)) for code in range(HEADER, DATA + 3))


def owned(value: Any) -> Any:
    """A deep copy. What proton decodes are views into memory that it frees together with its decoder."""
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, dict):
        return {owned(key): owned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [owned(item) for item in value]
    return value


def milliseconds(seconds: float) -> timestamp:
    return timestamp(int(seconds * 1000))


class Content:
    """A message without what the broker adds: sequence number, times, lock, delivery count.

    :param encoded: the message as it came. Raises ValueError when it isn't one.
    """

    __slots__ = ("_annotations", "_application_properties", "_body", "_header", "_properties", "session_id")

    def __init__(self, encoded: bytes) -> None:
        self._header: list[Any] = []
        self._annotations: dict[Any, Any] = {}
        self._properties = b""
        self._application_properties = b""
        self._body = b""
        self.session_id: str | None = None
        start = 0
        while start < len(encoded):
            code, section, end = _section(encoded, start)
            if code >= DATA:
                self._body = encoded[start:]
                break
            if code == HEADER:
                self._header = _value(section)
            elif code == ANNOTATIONS:
                self._annotations = _value(section)
            elif code == PROPERTIES:
                self._properties = encoded[start:end]
                properties = _value(section)
                self.session_id = properties[_GROUP_ID] if len(properties) > _GROUP_ID else None
            elif code == APPLICATION_PROPERTIES:
                self._application_properties = encoded[start:end]
            start = end

    @property
    def time_to_live_seconds(self) -> float | None:
        ttl = self._header[2] if len(self._header) > 2 else None
        return None if ttl is None else float(ttl) / 1000

    @property
    def scheduled_for(self) -> float | None:
        """When it may be delivered, in seconds since the epoch; None: at once."""
        when = self._annotations.get(SCHEDULED_ENQUEUE_TIME)
        return None if when is None else float(when) / 1000

    def with_application_properties(self, more: dict[str, str]) -> Content:
        """A copy with these application properties added or replaced."""
        section = self._application_properties
        known = _value(_section(section, 0)[1]) if section else {}
        other = Content(b"")
        for name in Content.__slots__:
            setattr(other, name, getattr(self, name))
        other._application_properties = _encode(APPLICATION_PROPERTIES, {**known, **more})
        return other

    def encode(self, delivery_count: int, annotations: dict[str, Any]) -> bytes:
        """The message as it is delivered, with the broker's annotations beside the sender's."""
        durable, priority, ttl = [*self._header, None, None, None][:3]
        header = [bool(durable), priority, ttl, None, uint(delivery_count)]
        merged = {**self._annotations, **{symbol(name): value for name, value in annotations.items()}}
        return b"".join(
            (
                _encode(HEADER, header),
                _encode(ANNOTATIONS, merged),
                self._properties,
                self._application_properties,
                self._body,
            )
        )


def contents(encoded: bytes) -> list[Content]:
    """The messages of one transfer: a batch holds each of them, encoded, in a data section of its own.

    What marks a batch is the transfer's message format, which proton does not tell; so it is told by what it holds.
    """
    parts: list[bytes] = []
    start = 0
    while start < len(encoded):
        code, section, start = _section(encoded, start)
        if code == DATA:
            parts.append(_value(section))
        elif code > DATA:
            return [Content(encoded)]
    if parts and all(part.startswith(_MESSAGE_STARTS) for part in parts):
        return [Content(part) for part in parts]
    return [Content(encoded)]


def _section(encoded: bytes, start: int) -> tuple[int, Data, int]:
    decoder = Data()
    size = decoder.decode(encoded[start:])
    decoder.rewind()
    if decoder.next() is None or not decoder.is_described():
        raise ValueError("not an AMQP message: a section is missing its descriptor")
    decoder.enter()
    decoder.next()
    return int(decoder.get_ulong()), decoder, start + size


def _value(section: Data) -> Any:
    section.next()
    return owned(section.get_object())


def _encode(code: int, value: Any) -> bytes:
    encoder = Data()
    encoder.put_object(Described(ulong(code), value))
    return bytes(encoder.encode())

"""Up to where each asset has read an endpoint: the ids it knows, and its cursor.

Each asset has a position of its own, in its own state store, so that one that is added later, or was away for a while,
neither misses what the others have had nor makes them have it again.

Known ids are written as they come, a thousand to a segment; only the segment that is being filled is written
again, together with the cursor. So a write is some twelve kilobytes at most, far under the 64 KiB above which Airflow
warns.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable
from typing import Any

from airflow_provider_sharedstream.brokers.rest.answers import KEY_BYTES
from airflow_provider_sharedstream.brokers.rest.store import AssetGone, StateStore
from airflow_provider_sharedstream.stream.errors import SharedStreamError

log = logging.getLogger(__name__)

SEGMENT = 1000
"""Known ids in one stored value."""
VERSION = 1
HISTORY_BYTES = 6
KEY_LENGTH = KEY_BYTES * 4 // 3


class PositionUnreadable(SharedStreamError):
    """What is stored can't be understood."""


class Position:
    """One asset's.

    :param asset: its name; empty: nobody's, kept in memory alone.
    """

    def __init__(self, asset: str, bit: int) -> None:
        self.asset = asset
        self.bit = bit
        self.history = new_history()
        """What is read from here on has another one where somebody deletes or changes what is stored, so that what was
        put back is told from a repeat.
        """
        self.begun = False
        """Whether a first poll is behind it."""
        self.cursor: Any = None
        self.fingerprint: str | None = None
        """Of the whole body, where that is the item."""
        self.changes = 0
        """Of the whole body, so far."""
        self.dirty = False
        self.gone = False
        """Whether it was said that the asset takes no values any more."""
        self.filling: list[str] = []
        self.full: dict[int, list[str]] = {}
        """Full segments by their slot, oldest first."""
        self.unwritten: list[int] = []
        self.stored_slots: frozenset[int] = frozenset()
        """Slots that the stored head refers to: they must not be overwritten before it is."""

    def move_to(self, cursor: Any) -> None:
        """Set the cursor."""
        if cursor != self.cursor:
            self.cursor = cursor
            self.dirty = True

    def begin(self) -> None:
        """Note that a first poll is behind it."""
        if not self.begun:
            self.begun = True
            self.dirty = True

    def change_to(self, fingerprint: str | None, changes: int) -> None:
        """Note what the whole body is like.

        :param changes: how many it is by now.
        """
        if (fingerprint, changes) != (self.fingerprint, self.changes):
            self.fingerprint, self.changes = fingerprint, changes
            self.dirty = True

    def head(self, stream: str, cursor_path: str | None) -> dict[str, Any]:
        """Return what is stored besides the full segments. Its history is sealed: it goes with the rest alone."""
        head = {
            "version": VERSION,
            "stream": stream,
            "begun": self.begun,
            "cursor": self.cursor,
            "cursor_path": cursor_path,
            "fingerprint": self.fingerprint,
            "changes": self.changes,
            "known": "".join(self.filling),
            "slots": list(self.full),
        }
        return {**head, "history": f"{self.history}:{_seal(head)}"}

    def free_slot(self) -> int:
        """Return a slot that neither what is stored nor what will be refers to."""
        slot = 0
        while slot in self.full or slot in self.stored_slots:
            slot += 1
        return slot


class Positions:
    """Those of all assets that watch an endpoint.

    Which of them know an id is a bit set, so that fifty watchers of ten thousand items cost one dictionary.

    :param key: under which they are stored.
    :param stream: the endpoint in words, for whoever looks at the store.
    :param max_known_ids: how many ids are remembered; those that were listed longest ago are forgotten first.
    :param cursor_path: where the cursor comes from: one that came from elsewhere is not used.
    """

    def __init__(self, key: str, stream: str, max_known_ids: int, cursor_path: str | None) -> None:
        self.store: StateStore | None = None
        """None: they are kept in memory alone."""
        self._key = key
        self._stream = stream
        self._max_known_ids = max_known_ids
        self._cursor_path = cursor_path
        self._known: OrderedDict[str, int] = OrderedDict()
        self._positions: dict[str, Position] = {}
        self._writing = asyncio.Lock()

    def of(self, asset: str) -> Position:
        """Return an asset's position; one that wasn't loaded is empty."""
        position = self._positions.get(asset)
        if position is None:
            position = self._positions[asset] = Position(asset, 1 << len(self._positions))
        return position

    def knows(self, asset: str, key: str) -> bool:
        """Return whether the asset has had the item."""
        return bool(self._known.get(key, 0) & self.of(asset).bit)

    def unknowing(self, assets: Iterable[str]) -> Callable[[str], list[str]]:
        """Return what tells which of ``assets`` have not had an item; it notes that the item is still listed."""
        bits = {asset: self.of(asset).bit for asset in assets}
        everybody = sum(bits.values())

        def of(key: str) -> list[str]:
            known = self._known.get(key)
            if known is None:
                return list(bits)
            self._known.move_to_end(key)
            if known & everybody == everybody:
                return []
            return [asset for asset, bit in bits.items() if not known & bit]

        return of

    def add(self, asset: str, key: str) -> None:
        """Note that the asset has had the item."""
        position = self.of(asset)
        bits = self._known.get(key, 0)
        if bits & position.bit:
            return
        self._known[key] = bits | position.bit
        position.filling.append(key)
        position.dirty = True
        if len(position.filling) >= SEGMENT:
            self._close_segment(position)

    def trim(self, listed: Container[str] = ()) -> None:
        """Forget what was listed longest ago, down to the limit, but nothing that is in ``listed``."""
        while len(self._known) > self._max_known_ids and next(iter(self._known)) not in listed:
            self._known.popitem(last=False)

    def copy(self, source: str, target: str) -> None:
        """Put ``target`` where ``source`` is."""
        origin, position = self.of(source), self.of(target)
        for key in [key for key, bits in self._known.items() if bits & origin.bit]:
            self.add(target, key)
        position.history = origin.history
        position.move_to(origin.cursor)
        position.change_to(origin.fingerprint, origin.changes)
        if origin.begun:
            position.begin()

    async def load(self, asset: str) -> bool:
        """Read an asset's position, on top of what is in memory and not stored; return whether there was one. Where
        there is none, or none any more, the asset begins anew.

        :raises PositionUnreadable: what is there can't be understood.
        :raises AssetGone: the asset takes no values.
        :raises StateStoreTrouble: the store can't be reached.
        """
        if self.store is None or not asset:
            return self.of(asset).begun
        async with self._writing:
            return await self._load(self.store, self.of(asset))

    async def _load(self, store: StateStore, position: Position) -> bool:
        asset = position.asset
        head = await store.read(asset, self._key)
        if head is None:
            fresh = Position(asset, position.bit)
            # So that an asset that takes no values is found out before it is given an event.
            await store.write(asset, self._key, fresh.head(self._stream, self._cursor_path))
            self._forget(position)
            self._positions[asset] = fresh
            return False
        try:
            slots = [int(slot) for slot in head["slots"]]
            segments = {slot: _keys(await store.read(asset, f"{self._key}.{slot}")) for slot in slots}
            if head["version"] != VERSION:
                raise ValueError(f"its version is {head['version']}")
            self._take_over(position, head, segments)
        except (KeyError, TypeError, ValueError) as error:
            raise PositionUnreadable(
                f"the position that asset {asset!r} has stored under {self._key!r} can't be understood "
                f"({type(error).__name__}: {error}); delete it to start over"
            ) from error
        if (history := _history_of(head)) is None:
            # Somebody has put another position there. That has to be stored before an item is found from here on.
            position.history = new_history()
            await self._write(position)
        else:
            position.history = history
        return True

    def _forget(self, position: Position) -> None:
        for key, bits in self._known.items():
            self._known[key] = bits & ~position.bit

    def _take_over(self, position: Position, head: dict[str, Any], segments: dict[int, list[str]]) -> None:
        filling = _keys(head["known"])
        fingerprint, changes, begun = head["fingerprint"], int(head["changes"]), bool(head["begun"])
        cursor = head["cursor"] if head["cursor_path"] == self._cursor_path else None
        stored = set(itertools.chain(*segments.values(), filling))
        unsaved = [key for key in itertools.chain(*position.full.values(), position.filling) if key not in stored]
        position.full, position.filling = segments, filling
        position.stored_slots = frozenset(segments)
        position.unwritten.clear()
        for key in itertools.chain(*segments.values(), filling):
            self._known[key] = self._known.get(key, 0) | position.bit
        if position.dirty or position.gone:
            # What is in memory is newer.
            position.filling = filling + unsaved
            position.dirty = True
            return
        position.begun = position.begun or begun
        position.fingerprint, position.changes, position.cursor = fingerprint, changes, cursor

    async def write(self) -> None:
        """Store what has changed.

        :raises StateStoreTrouble: the store can't be reached; what is not stored yet is, with the next call.
        """
        # The assets in alphabetical order: the first of a trigger's, by which it goes on, is never behind.
        async with self._writing:
            for asset in sorted(self._positions):
                position = self._positions[asset]
                if position.dirty:
                    await self._write(position)

    async def _write(self, position: Position) -> None:
        position.dirty = False
        if self.store is None or not position.asset:
            return
        try:
            # Segments first: a head must not refer to what isn't there.
            while position.unwritten:
                slot = position.unwritten[0]
                if slot in position.full:
                    await self.store.write(position.asset, f"{self._key}.{slot}", "".join(position.full[slot]))
                position.unwritten = position.unwritten[1:]
            head = position.head(self._stream, self._cursor_path)
            slots = frozenset(head["slots"])
            position.stored_slots |= slots
            await self.store.write(position.asset, self._key, head)
            position.stored_slots = slots
            position.gone = False
        except AssetGone as error:
            # To wait for it would hold up everybody else: its Dag has gone, and its trigger will.
            if not position.gone:
                log.warning("%s; up to where it has read %s is not stored", error, self._stream)
            position.gone = True
            # Airflow deletes what is stored of it: should it come back, a head alone would refer to nothing.
            position.unwritten = list(position.full)
        except BaseException:
            position.dirty = True
            raise

    def _close_segment(self, position: Position) -> None:
        slot = position.free_slot()
        position.full[slot] = position.filling
        position.unwritten.append(slot)
        position.filling = []
        while len(position.full) * SEGMENT > self._max_known_ids + SEGMENT:
            oldest = next(iter(position.full))
            dropped = position.full.pop(oldest)
            # What is still listed must be remembered, however long ago it came.
            position.filling += [key for key in dropped if self._known.get(key, 0) & position.bit]


def new_history() -> str:
    """Return the name of a history."""
    return secrets.token_urlsafe(HISTORY_BYTES)


def _history_of(head: dict[str, Any]) -> str | None:
    """Return the history of a stored position; None: it isn't of our making, or of an older version's."""
    rest = dict(head)
    history, _, seal = str(rest.pop("history", "")).partition(":")
    return history if history and seal == _seal(rest) else None


def _seal(head: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(head, sort_keys=True).encode()).hexdigest()[:16]


def _keys(joined: str) -> list[str]:
    if not isinstance(joined, str) or len(joined) % KEY_LENGTH:
        raise ValueError("its known ids are no multiple of their length")
    return [joined[start : start + KEY_LENGTH] for start in range(0, len(joined), KEY_LENGTH)]

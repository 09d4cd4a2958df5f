"""From the bytes of an answer to its items. Pure, so that it may run in a thread."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from airflow_provider_sharedstream.brokers.rest.asks import path_of, search
from airflow_provider_sharedstream.brokers.rest.errors import AnswerUnusable

LONGEST_ID = 256
"""Characters of an id that is shown as it is; a longer one is shown as its hash."""
KEY_BYTES = 9
"""Of a hash, kept to know an item by: twelve characters. Two of a thousand million items share one with a
probability of one to nine thousand.
"""


class Item(NamedTuple):
    """One item of an answer.

    :param key: what it is known by, twelve characters.
    :param id: what it is called.
    :param body: it, as JSON; or the whole body as it came.
    :param content_type: what a body that isn't JSON says that it is; None: it is JSON.
    """

    key: str
    id: str
    body: bytes
    content_type: str | None = None


class Page(NamedTuple):
    """What one answer holds.

    :param items: its items; where the body as a whole is one, that.
    :param document: the parsed body; None where it isn't JSON.
    :param cursor: a text or a number; None: it gives none.
    """

    items: Sequence[Item]
    document: Any = None
    cursor: Any = None


class Reader:
    """Reads answers.

    :param items_path: JMESPath to the list of items; None: the whole body is one.
    :param id_path: JMESPath from an item to its id; None, or where it finds none: a hash of the item.
    :param cursor_path: JMESPath from the body to the cursor; None: there is none.
    :param expect_json: whether a body that isn't JSON is an error.
    :raises InvalidArgument: one isn't a JMESPath.
    """

    def __init__(
        self,
        items_path: str | None = None,
        id_path: str | None = None,
        cursor_path: str | None = None,
        *,
        expect_json: bool = True,
    ) -> None:
        self._items = None if items_path is None else path_of("items_path", items_path)
        self._id = None if id_path is None else path_of("id_path", id_path)
        self._cursor = None if cursor_path is None else path_of("cursor_path", cursor_path)
        self._needs_json = expect_json or items_path is not None or cursor_path is not None

    @property
    def whole_body(self) -> bool:
        """Whether the body is one item."""
        return self._items is None

    def read(self, body: bytes, content_type: str = "no content type") -> Page:
        """Return what ``body`` holds.

        :param content_type: what the answer says that it is, for the message.
        :raises AnswerUnusable: it isn't JSON, or isn't what the paths expect: an error page, for instance.
        """
        document, is_json = _parsed(body)
        if not is_json and self._needs_json:
            raise AnswerUnusable(f"the answer is not JSON: {len(body)} bytes, {content_type[:80]}")
        try:
            items = self._items_of(body, document, None if is_json else content_type)
            return Page(items, document, self._cursor_of(document))
        except RecursionError:
            raise AnswerUnusable("the answer is nested too deeply") from None

    def _items_of(self, body: bytes, document: Any, content_type: str | None) -> list[Item]:
        if self._items is None:
            digest = _digest(_canonical(document) if content_type is None else body)
            return [Item(digest, digest, body, content_type)]
        found = search("items_path", self._items, document)
        if not isinstance(found, list):
            # An error page with status 200 looks like this, so null is not taken for an empty list.
            raise AnswerUnusable(f"items_path gives {_kind(found)}, expected a list")
        return [self._item(one) for one in found]

    def _item(self, one: Any) -> Item:
        found = None if self._id is None else search("id_path", self._id, one)
        nameless = _is_nothing(found)
        text = "" if nameless else _id_text(found)
        if not 0 < len(text) <= LONGEST_ID or not text.isprintable():
            text = hashlib.sha256(_canonical(one if nameless else found)).hexdigest()[:32]
        return Item(_digest(text.encode()), text, _encoded(one))

    def _cursor_of(self, document: Any) -> Any:
        if self._cursor is None:
            return None
        found = search("cursor_path", self._cursor, document)
        if found is None or found == "":
            return None
        number = isinstance(found, (int, float)) and not isinstance(found, bool) and math.isfinite(found)
        if not number and not isinstance(found, str):
            raise AnswerUnusable(f"cursor_path gives {_kind(found)}, expected a text, a finite number or null")
        return found


def changed(now: Item, changes: int) -> Item:
    """Return the whole body ``now`` under an id of its own: one that comes back is new again.

    :param changes: how many there were before.
    """
    return now._replace(id=f"{now.key}-{changes}")


def later(one: Any, other: Any) -> Any:
    """Return the later of two cursors; ``other``, the newer answer's, where they can't be compared.

    Numbers and points in time can be. A list with the newest first gives its last page's cursor last.
    """
    if one is None or other is None:
        return one if other is None else other
    first, second = _comparable(one), _comparable(other)
    try:
        return one if first is not None and second is not None and first > second else other
    except TypeError:
        return other


def _comparable(cursor: Any) -> Any:
    if isinstance(cursor, (int, float)):
        return cursor
    if not isinstance(cursor, str) or len(cursor) < len("2026-01-01"):
        return None
    try:
        moment = datetime.fromisoformat(cursor.replace("Z", "+00:00"))
    except ValueError:
        return None
    # Naive ones can be compared among each other alone.
    return moment


def _parsed(body: bytes) -> tuple[Any, bool]:
    try:
        return msgspec.json.decode(body), True
    except (msgspec.MsgspecError, ValueError, RecursionError):
        pass
    try:
        # More lenient, so that one item with a NaN, or a byte order mark, doesn't cost all the others.
        return json.loads(body), True
    except (ValueError, RecursionError):
        return None, False


def _encoded(value: Any) -> bytes:
    try:
        made = msgspec.json.encode(value)
        # It writes what isn't JSON (NaN, an infinity) as null; the decoder shall see it, and refuse the item.
        if b"null" not in made or msgspec.json.decode(made) == value:
            return made
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        pass
    return json.dumps(value).encode()


def _canonical(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, order="deterministic")
    except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError):
        return json.dumps(value, sort_keys=True).encode()


def _is_nothing(found: Any) -> bool:
    """Whether it names no item. All those that it were the name of would be one."""
    if isinstance(found, dict):
        found = list(found.values())
    return found in (None, "") or (isinstance(found, list) and all(map(_is_nothing, found)))


def _id_text(found: Any) -> str:
    text = found if isinstance(found, str) else _canonical(found).decode()
    try:
        text.encode()
    except UnicodeEncodeError:
        return ""
    return text


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()[:KEY_BYTES]).decode()


def _kind(value: Any) -> str:
    return {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "null"}.get(
        type(value), "a number"
    )

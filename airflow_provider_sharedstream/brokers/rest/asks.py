"""What an endpoint is asked for, and what it is asked for next."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from urllib.parse import urljoin

import jmespath
from jmespath.exceptions import JMESPathError

from airflow_provider_sharedstream.brokers.rest.errors import AnswerUnusable
from airflow_provider_sharedstream.messages.match import complaint
from airflow_provider_sharedstream.stream.errors import InvalidArgument, error_text

IN_DATA = "data."
"""What the name of a parameter begins with that goes into the request's ``data`` and not into its query."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    :param url: where to; it may have a query of its own.
    :param params: query parameters besides.
    :param data: what is sent: JSON, or text; None: nothing.
    """

    url: str
    params: Mapping[str, Any]
    data: Any = None

    @property
    def key(self) -> str:
        """What tells one request from another."""
        return json.dumps([self.url, dict(self.params), self.data], sort_keys=True, default=str)

    def having(self, name: str, value: Any) -> Ask:
        """Return the request with a parameter set; a name such as ``data.page.after`` sets a field of ``data``."""
        if not name.startswith(IN_DATA):
            return replace(self, params={**self.params, name: value})
        data = copy.deepcopy(self.data) if isinstance(self.data, dict) else {}
        *parents, last = name.removeprefix(IN_DATA).split(".")
        place = data
        for parent in parents:
            if not isinstance(place.get(parent), dict):
                place[parent] = {}
            place = place[parent]
        place[last] = value
        return replace(self, data=data)


class Validators(NamedTuple):
    """What a conditional request is made with."""

    etag: str | None
    last_modified: str | None

    def __bool__(self) -> bool:
        return bool(self.etag or self.last_modified)


class Asked(NamedTuple):
    """One request, and what is known of its answer."""

    ask: Ask
    url: str
    """Where the answer came from, after redirects."""
    link: str | None
    """The target of its ``Link: rel=next``."""
    document: Any
    items: int
    """How many items it holds."""
    position: int
    """How many items the pages hold up to here, this one included."""
    number: int
    """Which page it is, from 1."""
    cursor: Any
    """The cursor that it gives; None: none."""


Next = Callable[[Asked], "Ask | None"]


class Paging(NamedTuple):
    """How the pages of an answer are gone through.

    :param next: the request for the page after one; None: there is none.
    :param first: what the first request has in addition.
    :param by_cursor: each page's cursor leads to the next one, so that a page is a place to go on from.
    """

    next: Next
    first: Callable[[Ask], Ask] = lambda ask: ask
    by_cursor: bool = False


def paging(next_page: Any, cursor_param: str | None) -> Paging:
    """Return what ``next_page`` asks for.

    :param next_page: None or ``"link"``: the target of ``Link: <...>; rel="next"`` (RFC 8288), where there is one;
        ``"none"``: one page; ``"cursor"``: ``cursor_param`` set to the page's cursor; ``{"url": path}``: a JMESPath to
        a URL in the body; ``{"token": path, "param": name}``: a JMESPath to a token, and the parameter that takes it;
        ``{"page": name, "first": 1}``: a parameter that counts pages; ``{"offset": name, "first": 0}``: one that counts
        items. The last two end with a page without items, or with fewer than ``"size"``.
    :param cursor_param: the parameter that takes the cursor.
    :raises InvalidArgument: it is none of these.
    """
    if next_page in (None, "link"):
        return Paging(lambda asked: _at(asked, asked.link))
    if next_page == "none":
        return Paging(lambda asked: None)
    if next_page == "cursor" and cursor_param is not None:
        return Paging(lambda asked: _by_cursor(asked, cursor_param), by_cursor=True)
    if isinstance(next_page, Mapping):
        names = frozenset(next_page)
        if names == {"url"}:
            return _by_url(path_of("next_page", next_page["url"]))
        if names == {"token", "param"} and _is_name(next_page["param"]):
            return _by_token(path_of("next_page", next_page["token"]), next_page["param"])
        for kind in ("page", "offset"):
            if kind in names and names <= {kind, "first", "size"} and _is_name(next_page[kind]):
                return _by_number(kind, next_page)
    raise InvalidArgument(
        f"next_page={next_page!r}: expected None, 'link', 'none', 'cursor' with cursor_param, {{'url': JMESPath}}, "
        "{'token': JMESPath, 'param': name}, {'page': name} or {'offset': name}, "
        "the last two with 'first' and 'size', whole numbers, where needed"
    )


def path_of(argument: str, path: Any) -> Any:
    """Compile a JMESPath expression.

    :raises InvalidArgument: it isn't one.
    """
    try:
        return jmespath.compile(path)
    except JMESPathError as error:
        raise InvalidArgument(f"{argument}={path!r}: {complaint(path, error)}") from None
    except (TypeError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"{argument}={path!r}: not a JMESPath expression: {error_text(error)}") from None


def search(argument: str, path: Any, document: Any) -> Any:
    """Return what a compiled ``path`` finds.

    :raises AnswerUnusable: it can't be evaluated on this document.
    """
    try:
        return path.search(document)
    except (JMESPathError, TypeError, ValueError, AttributeError, RecursionError) as error:
        text = str(error).split("\n")[0][:200]
        raise AnswerUnusable(f"{argument} can't be evaluated on the answer: {text}") from None


def _at(asked: Asked, target: str | None) -> Ask | None:
    if not target:
        return None
    try:
        # What the page is to hold is said in it: the first request's parameters don't go with it.
        return Ask(urljoin(asked.url, target), {}, asked.ask.data)
    except ValueError:
        raise AnswerUnusable("the next page's address is not a URL") from None


def _by_cursor(asked: Asked, cursor_param: str) -> Ask | None:
    if asked.cursor is None or not asked.items:
        return None
    return asked.ask.having(cursor_param, asked.cursor)


def _by_url(path: Any) -> Paging:
    def following(asked: Asked) -> Ask | None:
        target = search("next_page", path, asked.document)
        if target is not None and not isinstance(target, str):
            raise AnswerUnusable(f"next_page gives {type(target).__name__}, expected a URL or null")
        return _at(asked, target)

    return Paging(following)


def _by_token(path: Any, param: str) -> Paging:
    def following(asked: Asked) -> Ask | None:
        token = search("next_page", path, asked.document)
        if isinstance(token, (dict, list)):
            raise AnswerUnusable(f"next_page gives {type(token).__name__}, expected a token or null")
        return None if token in (None, "", False) else asked.ask.having(param, token)

    return Paging(following)


def _by_number(kind: str, given: Mapping[str, Any]) -> Paging:
    name: str = given[kind]
    first, size = given.get("first", 1 if kind == "page" else 0), given.get("size", 1)
    if type(first) is not int or type(size) is not int or size < 1:
        raise InvalidArgument(f"next_page={dict(given)!r}: expected whole numbers for 'first' and 'size'")

    def following(asked: Asked) -> Ask | None:
        if asked.items < size:
            return None
        return asked.ask.having(name, first + (asked.number if kind == "page" else asked.position))

    return Paging(following, first=lambda ask: ask.having(name, first))


def _is_name(given: Any) -> bool:
    return isinstance(given, str) and bool(given)

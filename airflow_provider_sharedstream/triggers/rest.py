"""A REST endpoint."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.rest.adapter import MEBIBYTE, RestSharedStreamProducer
from airflow_provider_sharedstream.brokers.rest.answers import Reader
from airflow_provider_sharedstream.brokers.rest.asks import IN_DATA, paging
from airflow_provider_sharedstream.brokers.rest.watcher import RestWatcher
from airflow_provider_sharedstream.connections.http import DEFAULT_CONN_ID
from airflow_provider_sharedstream.messages.callables import resolve
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.triggers.arguments import (
    DOTTED_PATH,
    REQUIRED,
    TEXT,
    TEXT_OR_NONE,
    Argument,
    CommonArguments,
)
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

SECRET = re.compile(
    r"(.*[-_.])?(api-?_?key|(access|auth|bearer|id|private|refresh|secret|session)[-_]?(key|token)|auth|authorization|"
    r"cookie|credentials?|jwt|pass(word|wd|phrase)?|pwd|sas|secret|sig|signature|token)",
    re.IGNORECASE,
)
NOT_SECRET = re.compile(r"(.*[-_.])?(continuation|cursor|next|page|paging|start|sync)[-_]?token", re.IGNORECASE)
"""What a list calls a place in it."""
CREDENTIALS = re.compile(r"(basic|bearer) ", re.IGNORECASE)
"""What a value begins with that is a secret whatever its name."""


class RestPollTrigger(BrokerEventTrigger):
    """Fires when a REST endpoint lists items that it didn't list before, or when what it answers changes.

    With ``items_path`` each new item of the list is a message; one that a watcher has an event for never comes again,
    whether it stays listed or not. Without, the whole body is one, and comes whenever it differs from the one before.

    One request serves all watchers of an endpoint. How far each asset has read is stored in its state store, after its
    events: an asset that is added later, or was away, gets what it has not had. A trigger for several assets goes on
    from the position of the first of them, by name.

    A rejected item is logged as an error with its id and the reason, and doesn't come again.

    :param endpoint: a URL, or a path below the host of the connection. Required.
    :param http_conn_id: the Airflow connection of type ``http``; its login and password, and ``bearer_token``,
        ``headers``, ``params``, ``verify``, ``cert``, ``trust_env`` and ``auth_kwargs`` of its extra are used; any
        other key of the extra is a header. All of it goes to the host of the endpoint alone. Default: ``http_default``,
        where there is one that leads to that host; None: none.
    :param method: ``GET`` (default) or ``POST``.
    :param headers: sent with each request. Not for secrets: these belong to the connection.
    :param params: query parameters. Not for secrets either.
    :param data: what is sent with ``POST``: a text, or a value sent as JSON. Not for secrets either.
    :param poll_interval: seconds from one poll to the next, varied by a tenth. Default: 60; at least 0.1.
    :param items_path: JMESPath to the list of items in the body (``@`` where the body is the list). Default: None, the
        whole body is one.
    :param id_path: JMESPath from an item to what it is known by; ``[id, updated_at]`` makes each change an item of its
        own. Default: None, a hash of the item, as it is for an item that has none.
    :param cursor_path: JMESPath from the body to what the next poll begins after: ``max(items[].updated_at)``,
        ``next_cursor``. Of several pages the latest counts, where they are numbers or times; otherwise the last page's.
    :param cursor_param: the query parameter that takes it. ``data.after`` sets a field of ``data``.
    :param next_page: how the next page is found: None or ``"link"``: by ``Link: rel=next``, where there is one;
        ``"none"``: there is only one; ``"cursor"``: by the cursor; ``{"url": JMESPath}``: by a URL in the body;
        ``{"token": JMESPath, "param": name}``: by a token in it; ``{"page": name}`` and ``{"offset": name}``: by
        counting pages (from ``"first"``, 1) or items (from ``"first"``, 0), until a page has fewer than ``"size"`` (1).
    :param first_poll: ``all`` (default): what a watcher's first poll finds is new to it; ``new``: only what comes later
        is. Watchers may differ in it and share a stream.
    :param max_pages: most pages in one poll; the next one reads on. Default: 100.
    :param max_known_ids: how many items are remembered, and most that may be listed at once. Default: 10,000.
    :param timeout_seconds: for one answer as a whole. Default: 30; at most 60.
    :param max_response_bytes: largest answer, unpacked. Default: 10 MiB; at most 100 MiB.
    :param allowed_hosts: other hosts, as ``host`` or ``host:port``, to which redirects and pages may lead. They are not
        sent what is in the connection. Default: none.
    :param auth_class: dotted path of an :class:`httpx.Auth`, called with ``auth_kwargs`` of the connection's extra, or
        with its login and password. Default: None, basic authentication where the connection has a login.
    :param expect: ``json`` (default): an answer that isn't JSON is an error, and fires nothing; ``any``: a body of any
        kind is taken as it is. For whole bodies.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`.
    """

    producer_class = RestSharedStreamProducer
    shows_put_back = True
    ARGUMENTS = {
        "endpoint": Argument(REQUIRED, TEXT, example="https://example.com/items"),
        "http_conn_id": Argument(DEFAULT_CONN_ID, TEXT_OR_NONE),
        "method": Argument("GET", {"enum": ["GET", "POST"]}),
        # Looked at below: what is wrong with these two must not be shown, it may be a secret.
        "headers": Argument(None, {}),
        "params": Argument(None, {}),
        "data": Argument(None, {"type": ["object", "array", "string", "null"]}),
        "poll_interval": Argument(60.0, {"type": "number", "minimum": 0.1, "maximum": 86_400}),
        "items_path": Argument(None, TEXT_OR_NONE),
        "id_path": Argument(None, TEXT_OR_NONE),
        "cursor_path": Argument(None, TEXT_OR_NONE),
        "cursor_param": Argument(None, TEXT_OR_NONE),
        "next_page": Argument(None, {"type": ["string", "object", "null"], "description": "'link', 'none', 'cursor'"}),
        "first_poll": Argument("all", {"enum": ["all", "new"]}, "filter"),
        "max_pages": Argument(100, {"type": "integer", "minimum": 1, "maximum": 10_000}),
        "max_known_ids": Argument(10_000, {"type": "integer", "minimum": 100, "maximum": 1_000_000}),
        "timeout_seconds": Argument(30.0, {"type": "number", "minimum": 1, "maximum": 60}),
        "max_response_bytes": Argument(10 * MEBIBYTE, {"type": "integer", "minimum": 1024, "maximum": 100 * MEBIBYTE}),
        "allowed_hosts": Argument([], {"type": "array", "items": {"type": "string", "minLength": 1}}),
        "auth_class": Argument(None, DOTTED_PATH),
        "expect": Argument("json", {"enum": ["json", "any"]}),
    }

    def __init__(
        self,
        endpoint: str = REQUIRED,
        http_conn_id: str | None = DEFAULT_CONN_ID,
        method: Literal["GET", "POST"] = "GET",
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] | None = None,
        data: Any = None,
        poll_interval: float = 60.0,
        items_path: str | None = None,
        id_path: str | None = None,
        cursor_path: str | None = None,
        cursor_param: str | None = None,
        next_page: str | Mapping[str, Any] | None = None,
        first_poll: Literal["all", "new"] = "all",
        max_pages: int = 100,
        max_known_ids: int = 10_000,
        timeout_seconds: float = 30.0,
        max_response_bytes: int = 10 * MEBIBYTE,
        allowed_hosts: Sequence[str] = (),
        auth_class: str | None = None,
        expect: Literal["json", "any"] = "json",
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "endpoint": endpoint,
            "http_conn_id": http_conn_id,
            "method": method,
            "headers": headers,
            "params": params,
            "data": data,
            "poll_interval": poll_interval,
            "items_path": items_path,
            "id_path": id_path,
            "cursor_path": cursor_path,
            "cursor_param": cursor_param,
            "next_page": next_page,
            "first_poll": first_poll,
            "max_pages": max_pages,
            "max_known_ids": max_known_ids,
            "timeout_seconds": timeout_seconds,
            "max_response_bytes": max_response_bytes,
            "allowed_hosts": list(allowed_hosts) if isinstance(allowed_hosts, tuple) else allowed_hosts,
            "auth_class": auth_class,
            "expect": expect,
        }
        super().__init__(common, **own)

    def check(self) -> Iterator[str]:
        """Yield what no single argument shows."""
        given = self.arguments
        for make in (
            lambda: Reader(given["items_path"], given["id_path"], given["cursor_path"]),
            lambda: paging(given["next_page"], given["cursor_param"]),
            lambda: given["auth_class"] is None or resolve(given["auth_class"], "auth_class"),
        ):
            try:
                make()
            except InvalidArgument as error:
                yield str(error)
        if given["items_path"] is None:
            for name in ("id_path", "next_page"):
                if given[name] is not None:
                    yield f"{name}={given[name]!r}: without items_path the whole body is one item, of one page"
        elif given["expect"] != "json":
            yield f"expect={given['expect']!r}: with items_path the answer has to be JSON"
        if (given["cursor_path"] is None) != (given["cursor_param"] is None):
            yield (
                f"cursor_path={given['cursor_path']!r}, cursor_param={given['cursor_param']!r}: expected "
                "both or neither; the cursor comes from the one and goes into the other"
            )
        if given["data"] is not None and given["method"] != "POST":
            yield f"data, method={given['method']!r}: expected 'POST', with which data is sent"
        for host in given["allowed_hosts"]:
            if "/" in host or "@" in host:
                yield f"allowed_hosts={given['allowed_hosts']!r}: expected host or host:port, without a path"
        yield from self._wrong_address(given["endpoint"])
        if given["http_conn_id"] is None and "://" not in given["endpoint"]:
            path = given["endpoint"].partition("?")[0]
            yield f"endpoint={path!r}, http_conn_id=None: a path needs a connection that names the host"
        if given["headers"] is not None and not _maps_texts(given["headers"], (str,)):
            yield "headers: expected None, or a dict of texts such as {'Accept': 'application/json'}"
        elif given["params"] is not None and not _maps_texts(given["params"], (str, int, float, list)):
            yield "params: expected None, or a dict of texts, numbers or lists of them, such as {'size': 10}"
        else:
            yield from self._secrets()
        parameters = {given["cursor_param"], *(given["next_page"] if isinstance(given["next_page"], dict) else {})}
        if any(isinstance(one, str) and one.startswith(IN_DATA) for one in parameters) and given["method"] != "POST":
            yield f"cursor_param={given['cursor_param']!r}, method={given['method']!r}: a field of data needs 'POST'"

    @staticmethod
    def _wrong_address(endpoint: str) -> Iterator[str]:
        try:
            parts = urlsplit(endpoint)
            absolute = "://" in endpoint
            if absolute and (parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0):
                yield "endpoint: expected an address that begins with http:// or https:// and a host, or a path"
            if "@" in parts.netloc:
                yield "endpoint: it holds a login; put that into the login and password of the connection"
            if any(character.isspace() or not character.isprintable() for character in endpoint):
                yield f"endpoint={endpoint.partition('?')[0]!r}: expected no blanks; write %20"
        except ValueError as error:
            yield f"endpoint: not an address: {error}"

    def _secrets(self) -> Iterator[str]:
        """Yield arguments that look like secrets. They would be seen in the UI, and are part of the stream's key."""
        given = self.arguments
        query = dict(parse_qsl(given["endpoint"].partition("?")[2], keep_blank_values=True))
        for argument, names, place in (
            ("endpoint", query, "params"),
            ("params", given["params"] or {}, "params"),
            ("headers", given["headers"] or {}, "headers"),
        ):
            for name, value in dict(names).items():
                if _is_secret(name) or CREDENTIALS.match(str(value)):
                    yield (
                        f"{argument}: {name!r} looks like a secret; "
                        f'put it into the extra of the connection: {{"{place}": {{"{name}": ...}}}}'
                    )
        for name in filter(_is_secret, _named_texts(given["data"])):
            yield (
                f"data: {name!r} looks like a secret; send it as a header or a parameter, from the extra of the "
                "connection, or put it in with an auth_class"
            )

    def introduction(self) -> RestWatcher:
        """Return which assets' positions this watcher goes by, and how it begins."""
        return RestWatcher(self.trigger_id, self.asset_names, self.arguments["first_poll"])

    def own_deliveries(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Return the items that this watcher has not had yet."""
        me = self.introduction()
        return [delivery for delivery in deliveries if delivery.handle.show_to(me)]

    def history_of(self, delivery: Delivery) -> str:
        """Return the history of the position by which this watcher goes."""
        histories: Mapping[str, str] = delivery.handle.histories
        return histories.get(self.introduction().lead, "")


def _is_secret(name: str) -> bool:
    return bool(SECRET.fullmatch(name) and not NOT_SECRET.fullmatch(name))


def _named_texts(data: Any) -> Iterator[str]:
    """Yield the names of all texts in ``data``."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            if isinstance(value, str) and value:
                yield str(name)
            else:
                yield from _named_texts(value)
    elif isinstance(data, (list, tuple)):
        for one in data:
            yield from _named_texts(one)


def _maps_texts(given: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(value, kinds) for name, value in given.items()
    )

"""What `RestPollTrigger` takes, refuses, stores, and shares."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.triggers.arguments import REQUIRED
from airflow_provider_sharedstream.triggers.rest import RestPollTrigger
from services.rest import RestServer
from services.rest_list import RestList

URL = "https://api.example.com/items"
SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"endpoint": "ftp://host/x"}, "endpoint: expected an address that begins with http"),
        ({"endpoint": "https:///x"}, "endpoint: expected an address that begins with http"),
        ({"endpoint": "https://[::1/x"}, "endpoint: not an address"),
        ({"endpoint": "https://host:99999/x"}, "endpoint: not an address"),
        ({"endpoint": "https://host/a b"}, "endpoint='https://host/a b': expected no blanks"),
        ({"endpoint": "v1/x", "http_conn_id": None}, "a path needs a connection that names the host"),
        ({"endpoint": ""}, "endpoint='': expected a text that isn't empty"),
        ({"endpoint": None}, "endpoint=None: expected a text"),
        ({"method": "DELETE"}, "method='DELETE': expected one of 'GET', 'POST'"),
        ({"poll_interval": 0}, "poll_interval=0: expected a number from 0.1 to 86,400"),
        ({"items_path": "items["}, "items_path='items\\[': not a JMESPath expression"),
        ({"id_path": "id"}, "id_path='id': without items_path the whole body is one item"),
        ({"next_page": "link"}, "next_page='link': without items_path"),
        ({"items_path": "@", "next_page": "links"}, "next_page='links': expected None, 'link'"),
        ({"items_path": "@", "cursor_path": "c"}, "cursor_path='c', cursor_param=None: expected both or neither"),
        ({"items_path": "@", "cursor_path": "c", "cursor_param": "data.c"}, "a field of data needs 'POST'"),
        ({"data": {"a": 1}}, "data, method='GET': expected 'POST'"),
        ({"first_poll": "none"}, "first_poll='none': expected one of 'all', 'new'"),
        ({"items_path": "@", "expect": "any"}, "expect='any': with items_path the answer has to be JSON"),
        ({"auth_class": "no.such.Thing"}, "auth_class: there is no module"),
        ({"on_unmatched": "leave"}, "on_unmatched='leave': expected one of"),
        ({"headers": {"X-A": 5}}, "headers: expected None, or a dict of texts such as"),
        ({"params": [1]}, "params: expected None, or a dict of texts"),
        ({"pages": 5}, "pages=5: there is no such argument; did you mean"),
        ({"max_known_ids": 5}, "max_known_ids=5: expected a whole number from 100 to 1,000,000"),
        ({"allowed_hosts": "host"}, "allowed_hosts='host': expected a list"),
    ],
)
def test_a_mistake_is_said_when_the_dag_is_parsed(arguments: dict[str, Any], text: str) -> None:
    trigger = RestPollTrigger(**{"endpoint": URL, **arguments})
    with pytest.raises(InvalidArgument, match=text):
        trigger.serialize()
    trigger.trigger_id = 1
    assert trigger.trouble() is not None or "pages" in arguments
    trigger.create_shared_stream_producer({"endpoint": URL, **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"endpoint": f"https://me:{SECRET}@host/x"},
        {"endpoint": f"https://host/x?api_key={SECRET}"},
        {"endpoint": f"https://host/x?a=1&access-token={SECRET}"},
        {"params": {"token": SECRET}},
        {"params": {"X-Amz-Signature": SECRET}},
        {"params": f"api_key={SECRET}"},
        {"headers": {"Authorization": f"Bearer {SECRET}"}},
        {"headers": {"x-api-key": SECRET}},
        {"headers": {"Cookie": SECRET}},
        {"headers": {"X-Odd": f"Bearer {SECRET}"}},
        {"method": "POST", "data": {"variables": [{"password": SECRET}]}},
        {"headers": {"Authorization": SECRET, "n": 5}},
    ],
)
def test_a_secret_is_refused_and_not_shown(arguments: dict[str, Any]) -> None:
    trigger = RestPollTrigger(**{"endpoint": URL, **arguments})
    with pytest.raises(InvalidArgument) as caught:
        trigger.serialize()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("name", ["page_token", "nextToken", "cursor", "pageToken", "sort_key", "keyword", "author"])
def test_a_place_in_a_list_is_no_secret(name: str) -> None:
    RestPollTrigger(URL, params={name: "abc"}).serialize()
    RestPollTrigger(URL, method="POST", data={"variables": {name: "abc", "token": None}}).serialize()


def test_it_comes_back_from_storage_as_it_was() -> None:
    arguments: dict[str, Any] = {
        "endpoint": "v1/items",
        "http_conn_id": "shop",
        "params": {"b": 1, "a": ["x"]},
        "items_path": "items",
        "next_page": {"token": "t", "param": "p"},
        "first_poll": "new",
        "match": "body.a",
    }
    classpath, stored = RestPollTrigger(**arguments).serialize()
    assert classpath == "airflow_provider_sharedstream.triggers.rest.RestPollTrigger"
    assert stored == json.loads(json.dumps(stored)) == arguments
    assert RestPollTrigger(**stored).serialize() == (classpath, stored)
    assert RestPollTrigger(URL, allowed_hosts=()).serialize()[1] == {"endpoint": URL}


def test_who_shares_a_poll() -> None:
    key = RestPollTrigger(URL, items_path="items").shared_stream_key()
    assert key == RestPollTrigger(URL, items_path="items", match="a", first_poll="new").shared_stream_key()
    assert key != RestPollTrigger(URL, items_path="items", poll_interval=5.0).shared_stream_key()


def test_every_argument_is_documented_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources" / "rest.md").read_text(encoding="utf-8")
    table = page.partition("\n\n|")[2].partition("\n\n")[0]
    documented = dict(re.findall(r"^\| `(\w+)` \| `?(.+?)`? \|", table, re.MULTILINE))

    def shown(default: Any) -> str:
        return "required" if default is REQUIRED else f"{default:,}" if type(default) is int else str(default)

    arguments = RestPollTrigger.ARGUMENTS
    assert documented == {name: shown(argument.default) for name, argument in arguments.items()}
    assert list(documented) == list(arguments), "in the same order"


async def test_it_can_be_tried_alone(server: RestServer, path: str) -> None:
    items = RestList(server, path)
    items.publish({"id": 1}, {"id": 2})
    trigger = RestPollTrigger(items.url, None, items_path="items", id_path="id", poll_interval=0.1, batch_size=1)
    events = trigger.run()
    found = [(await anext(events)).payload["messages"][0]["body"] for _ in range(2)]
    await events.aclose()  # type: ignore[attr-defined]
    assert found == [{"id": 1}, {"id": 2}]

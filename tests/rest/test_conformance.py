"""A REST endpoint is held to the adapter's contract, with the items of a list as the messages."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from airflow_provider_sharedstream.brokers.rest import adapter as rest
from airflow_provider_sharedstream.brokers.rest.adapter import RestConsumer
from airflow_provider_sharedstream.brokers.rest.answers import Reader
from airflow_provider_sharedstream.brokers.rest.positions import Positions
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from services.rest import RestServer
from services.rest_list import RestList
from tests.conformance.harness import DeadLetter
from tests.conformance.suite import Conformance

NUMBERS = itertools.count()
"""Of items and sources; no id comes twice in a run."""


class Refusals(logging.Handler):
    """Keeps what is logged of refused items: that is where an endpoint's dead letters go."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.refused: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if "is refused and won't come again" in str(record.msg) and isinstance(record.args, tuple):
            stream, item_id, *_ = map(str, record.args)
            self.refused.append((stream, item_id))


class RestSource:
    """A list that only grows, and the position of whoever reads it, which outlives a consumer as it does in Airflow."""

    def __init__(self, items: RestList, refusals: Refusals) -> None:
        self.items = items
        self.refusals = refusals
        self._consumers: list[RestConsumer] = []
        self.positions: Positions | None = None

    def consumer(self) -> RestConsumer:
        consumer = _Lasting(self)
        self._consumers.append(consumer)
        return consumer

    async def publish(
        self, bodies: Sequence[bytes], *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        items = []
        for body in bodies:
            try:
                item = json.loads(body)
            except ValueError:
                item = body.decode()
            items.append({**item, "_id": next(NUMBERS)} if isinstance(item, dict) else item)
        self.items.publish(*items)

    async def pending(self) -> int:
        if self.positions is None:
            return len(self.items.items)
        return sum(1 for item in self.items.items if not self.positions.knows("", self.key(item)))

    def key(self, item: Any) -> str:
        return Reader("@", "_id").read(json.dumps([item]).encode()).items[0].key

    async def dead_letters(self) -> Sequence[DeadLetter]:
        by_id = {str(item["_id"]): item for item in self.items.items if isinstance(item, dict)}
        mine = self._consumers[0].stream if self._consumers else ""
        letters = []
        for stream, item_id in self.refusals.refused:
            if stream == mine:
                body = {name: value for name, value in by_id[item_id].items() if name != "_id"}
                letters.append(DeadLetter(json.dumps(body), {}))
        return letters


class _Lasting(RestConsumer):
    """A consumer whose position is the source's."""

    def __init__(self, source: RestSource) -> None:
        super().__init__(source.items.url, None, poll_interval=0.2, items_path="items", id_path="_id")
        self._source = source

    def _make_positions(self) -> Positions:
        self._source.positions = self._source.positions or super()._make_positions()
        return self._source.positions


class RestHarness:
    lease_seconds = None
    gaps: Mapping[str, str] = {
        "test_a_dead_letter_keeps_body_and_headers": "an item has no headers",
        "test_a_lane_is_held_where_it_failed": "items have no lanes: one that fails keeps no other from coming",
        "test_without_a_place_for_dead_letters_nothing_is_dropped": "the log is always there",
    }

    def __init__(self, server: RestServer, refusals: Refusals) -> None:
        self.server = server
        self.refusals = refusals

    async def source(self, *, ordered: bool = False, dead_letters: bool = True) -> RestSource:
        if not dead_letters:
            raise SourceUnavailable("there is no endpoint without a log")
        return RestSource(RestList(self.server, f"/list-{next(NUMBERS)}"), self.refusals)

    def missing(self) -> RestConsumer:
        return RestConsumer(f"{self.server.url}/missing", None)

    async def restart(self) -> None:
        await self.cut()
        await self.heal()

    async def cut(self) -> None:
        await asyncio.to_thread(self.server.cut)

    async def heal(self) -> None:
        await asyncio.to_thread(self.server.heal)


class TestRest(Conformance):
    @pytest.fixture
    def harness(self) -> Iterator[RestHarness]:
        refusals = Refusals()
        logger = logging.getLogger(rest.__name__)
        logger.addHandler(refusals)
        with RestServer() as server:
            yield RestHarness(server, refusals)
        logger.removeHandler(refusals)

"""Whole Airflow processes on Kafka: a triggerer killed between storing and committing makes no second event where that
was asked for, and a group that is set back makes each again, once. A watcher that didn't ask shows the repeats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.kafka import KafkaServer
from services.postgres import PostgresServer
from tests.whole.common import numbered, numbers_by_asset
from tests.whole.test_kafka import SESSION, uncommitted

TOPIC = "repeats"
GROUP = "repeats"
KILLS = 3
SENT = 300
REMEMBER = ("durable", "by_key")


def left(server: KafkaServer) -> int:
    return asyncio.run(uncommitted(server, TOPIC, GROUP))


def members(server: KafkaServer) -> int:
    async def count() -> int:
        async with server.admin() as admin:
            return len(await admin.members(GROUP))

    return asyncio.run(count())


def send(server: KafkaServer, numbers: range) -> None:
    async def sending() -> None:
        async with server.admin() as admin:
            await admin.send(TOPIC, [body.encode() for body in numbered(numbers)])

    asyncio.run(sending())


def kill_between_storing_and_committing(airflow: Airflow, server: KafkaServer, more: Callable[[], object]) -> None:
    """Kill the triggerer when something of what `more` brings is stored, and the broker can't be told any more."""

    def stored() -> dict[str, int]:
        return {asset: sum(numbers.values()) for asset, numbers in numbers_by_asset(airflow).items()}

    before = stored()
    more()
    limit = time.monotonic() + 180
    while not all(stored().get(asset, 0) > before.get(asset, 0) for asset in ("plain", *REMEMBER)):
        assert time.monotonic() < limit
        time.sleep(0.02)
    server.kill()
    # What is with the watchers is stored.
    time.sleep(1)
    airflow.kill(airflow.triggerers[0])
    server.start()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_between_storing_and_committing_and_a_group_set_back(tmp_path: Path) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with KafkaServer(tmp_path / "kafka", settings=settings) as server, PostgresServer(tmp_path / "pg") as database:

        async def create() -> None:
            async with server.admin() as admin:
                await admin.create_topic(TOPIC, 3)

        asyncio.run(create())
        with Airflow(
            tmp_path / "airflow",
            Path(__file__).parent / "dags_repeats_kafka",
            database=database.create_database("repeats"),
            connections={"kafka_default": server.connection(SESSION)},
            env={"TEST_TOPIC": TOPIC},
        ) as airflow:
            triggerer = airflow.components[airflow.triggerers[0]]
            for number in range(KILLS):
                kill_between_storing_and_committing(
                    airflow, server, partial(send, server, range(number * SENT, (number + 1) * SENT))
                )
                triggerer.start()
            airflow.wait_for("everything committed", lambda: left(server) == 0)
            found = numbers_by_asset(airflow)
            once = dict.fromkeys(range(KILLS * SENT), 1)
            again = sum(found["plain"].values()) - len(once)
            print(f"\nby {KILLS} kills {again} of {len(once)} records came twice")
            assert set(found["plain"]) == set(once)
            assert again > 0, "no kill hit anything stored: this shows little"
            assert {asset: dict(found[asset]) for asset in REMEMBER} == dict.fromkeys(REMEMBER, once)

            # Somebody sets the group back, and while all of it comes again the triggerer is killed once more.
            triggerer.kill()
            airflow.wait_for("no member", lambda: members(server) == 0)
            server.set_back(GROUP, TOPIC)
            kill_between_storing_and_committing(airflow, server, triggerer.start)
            triggerer.start()
            airflow.wait_for("everything committed", lambda: left(server) == 0)
            found = numbers_by_asset(airflow)
            more = sum(found["plain"].values()) - again - 2 * len(once)
            print(f"by a kill after the group was set back {more} more")
            assert more > 0, "the kill hit nothing stored: this shows little"
            twice = dict.fromkeys(once, 2)
            assert {asset: dict(found[asset]) for asset in REMEMBER} == dict.fromkeys(REMEMBER, twice)

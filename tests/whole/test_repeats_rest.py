"""Whole Airflow processes on a REST endpoint: a triggerer killed between storing an event and its position makes no
second one where that was asked for; a position that is deleted makes each again. A watcher that did not ask shows the
repeats.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import sqlalchemy

from services.airflow import Airflow
from services.postgres import PostgresServer
from services.rest import RestServer
from services.rest_list import RestList
from tests.whole.common import numbers_by_asset

ASSETS = ("plain", "durable", "by_key")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_between_storing_an_event_and_its_position(tmp_path: Path) -> None:
    with RestServer() as server, PostgresServer(tmp_path / "pg") as database:
        items = RestList(server, "/items")
        address = database.create_database("repeats")
        with Airflow(
            tmp_path / "airflow",
            Path(__file__).parent / "dags_repeats_rest",
            database=address,
            env={"TEST_ENDPOINT": items.url},
        ) as airflow:
            triggerer = airflow.components[airflow.triggerers[0]]
            engine = sqlalchemy.create_engine(address)

            def had(asset: str, numbers: range) -> Counter[int]:
                found = numbers_by_asset(airflow).get(asset, Counter())
                return Counter({n: found[n] for n in numbers if found[n]})

            def polls() -> int:
                return server.count("/items")

            def publish(numbers: range) -> None:
                items.publish(*({"id": f"i{n}", "n": n} for n in numbers))

            def wait_for_polls() -> None:
                """Everything that a poll finds from now on has been stored when this returns."""
                before = polls()
                airflow.wait_for("some polls", lambda: polls() >= before + 5)

            publish(range(10))
            airflow.wait_for("all events", lambda: all(len(had(asset, range(10))) == 10 for asset in ASSETS))
            wait_for_polls()
            new = range(10, 20)
            with engine.begin() as connection:
                # Positions can be read, and not written.
                connection.execute(sqlalchemy.text("LOCK TABLE asset_state_store IN EXCLUSIVE MODE"))
                publish(new)
                limit = time.monotonic() + 120
                while not all(len(had(asset, new)) == 10 for asset in ASSETS):
                    assert time.monotonic() < limit
                    time.sleep(0.05)
                triggerer.kill()
            triggerer.start()
            airflow.wait_for("the repeats", lambda: had("plain", new) == dict.fromkeys(new, 2))
            wait_for_polls()
            for asset in ("durable", "by_key"):
                assert had(asset, new) == dict.fromkeys(new, 1), asset
            # Somebody deletes the positions: all of it is new, once.
            triggerer.kill()
            before = {asset: had(asset, range(20)) for asset in ASSETS}
            airflow.query("DELETE FROM asset_state_store")
            triggerer.start()
            expected = {asset: {n: times + 1 for n, times in before[asset].items()} for asset in ASSETS}
            airflow.wait_for("all of it again", lambda: had("plain", range(20)) == expected["plain"])
            wait_for_polls()
            assert {asset: had(asset, range(20)) for asset in ASSETS} == expected

"""A whole Airflow with a REST endpoint on which items appear, while its triggerer is killed again and again, a watcher
is added, and the state store refuses to be written to.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.rest import RestServer
from services.rest_list import RestList
from tests.rest.test_whole import had

PAGE = 100
KILLS = 10
REFUSED_SECONDS = 60.0
DAGS = Path(__file__).parent / "dags"
REFUSE = (
    "CREATE TRIGGER refuse_{0} BEFORE {0} ON asset_state_store BEGIN SELECT raise(ABORT, 'refused by the test'); END"
)


@contextmanager
def appearing(items: RestList, chance: random.Random) -> Iterator[itertools.count[int]]:
    """Items appear, some twice a second; yields the count of them."""
    numbers = itertools.count()
    enough = threading.Event()

    def publish() -> None:
        while not enough.wait(0.5):
            items.publish(
                *({"id": number, "even": number % 2 == 0} for number in itertools.islice(numbers, chance.randrange(8)))
            )

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    try:
        yield numbers
    finally:
        enough.set()
        thread.join()


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_no_item_is_missing(tmp_path: Path) -> None:
    chance = random.Random(10)
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(DAGS / "whole_rest.py", dags)
    pause = threading.Event()
    with RestServer() as server:
        items = RestList(server, "/items", pages="link", page_size=PAGE, etags=True)
        with Airflow(tmp_path / "airflow", dags, env={"TEST_ENDPOINT": items.url}) as airflow:
            triggerer = airflow.components[airflow.triggerers[0]]
            with appearing(items, chance) as numbers:
                airflow.wait_for("first events", lambda: len(had(airflow)) == 2)
                for kill in range(KILLS):
                    pause.wait(chance.uniform(0.0, 8.0))
                    airflow.kill(triggerer.name)
                    if kill == KILLS // 2:
                        (dags / "later.py").write_text(
                            (DAGS / "whole_rest.py").read_text().replace("whole_rest_", "later_")
                        )
                    triggerer.start()
                airflow.wait_for("events of the watchers that came later", lambda: len(had(airflow)) == 4)
                for event in ("INSERT", "UPDATE"):
                    airflow.query(REFUSE.format(event))
                pause.wait(REFUSED_SECONDS)
                assert "the state store of asset" in airflow.tail(triggerer.name, 10_000)
                for event in ("INSERT", "UPDATE"):
                    airflow.query(f"DROP TRIGGER refuse_{event}")
                pause.wait(5.0)
            expected = set(range(next(numbers)))
            even = {number for number in expected if number % 2 == 0}

            def complete() -> bool:
                found = had(airflow)
                return all(
                    set(found.get(f"{name}_{kind}", ())) >= wanted
                    for name in ("whole_rest", "later")
                    for kind, wanted in (("all", expected), ("even", even))
                )

            airflow.wait_for("every item at every asset", complete, limit_seconds=300)
            polls = server.count("/items")
            airflow.wait_for(
                "some more polls", lambda: server.count("/items") > polls + 3 * (len(expected) // PAGE + 1)
            )
            found = had(airflow)
            log = airflow.tail(triggerer.name, 100_000)
    twice = {asset: Counter.total(numbers) - len(numbers) for asset, numbers in found.items()}
    print(f"{len(expected)} items, {KILLS} kills: came again: {twice}")
    assert all(set(numbers) == (even if asset.endswith("even") else expected) for asset, numbers in found.items())
    # One page a kill, and what was stored without a position while the store refused.
    assert max(twice.values()) <= (KILLS + 1) * PAGE
    assert "failed in a way not foreseen" not in log

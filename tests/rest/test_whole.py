"""A whole Airflow with a REST endpoint: ten thousand items over a hundred pages, through a kill -9 in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.rest import RestServer
from services.rest_list import RestList

ITEMS = 10_000
PAGE = 100


def had(airflow: Airflow) -> dict[str, Counter[int]]:
    """Which items each asset's stored events hold, and how often."""
    found: dict[str, Counter[int]] = {}
    for event in airflow.asset_events():
        numbers = (message["body"]["id"] for message in event.extra["payload"]["messages"])
        found.setdefault(event.asset, Counter()).update(numbers)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_items_through_a_kill_in_the_middle(tmp_path: Path) -> None:
    with RestServer() as server:
        items = RestList(server, "/items", pages="link", page_size=PAGE, etags=True)
        items.publish(*({"id": number, "even": number % 2 == 0} for number in range(ITEMS)))
        with Airflow(tmp_path / "airflow", Path(__file__).parent / "dags", env={"TEST_ENDPOINT": items.url}) as airflow:
            triggerer = airflow.components[airflow.triggerers[0]]

            def stored(assets: int, count: int) -> bool:
                found = had(airflow)
                return len(found) == assets and sum(len(numbers) for numbers in found.values()) >= count

            airflow.wait_for("a third of the events", lambda: stored(2, ITEMS // 2), limit_seconds=300)
            airflow.kill(triggerer.name)
            before = {asset: sum(numbers.values()) for asset, numbers in had(airflow).items()}
            assert all(ITEMS // 10 < count < ITEMS for count in before.values()), before
            triggerer.start()
            airflow.wait_for("all events", lambda: stored(2, ITEMS + ITEMS // 2), limit_seconds=400)
            asked = items.not_modified
            airflow.wait_for("another poll of a hundred pages", lambda: items.not_modified >= asked + 200)
            found = had(airflow)
            state = airflow.query(
                "SELECT asset.name, count(*), max(length(value)) FROM asset_state_store AS state "
                "JOIN asset ON asset.id = state.asset_id GROUP BY asset.name ORDER BY 1"
            )
            print(f"stored at the kill: {before}; state: {state}")
    assert set(found["whole_rest_all"]) == set(range(ITEMS))
    assert set(found["whole_rest_even"]) == set(range(0, ITEMS, 2))
    for asset, numbers in found.items():
        twice = sum(numbers.values()) - len(numbers)
        print(f"{asset}: {twice} items came twice")
        assert max(numbers.values()) <= 2
        assert twice <= PAGE, f"{asset}: more than a page came twice"

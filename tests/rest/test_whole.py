"""A whole Airflow with a REST endpoint: items over many pages, through a kill -9 in the middle."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.rest import RestServer
from services.rest_list import RestList

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
@pytest.mark.parametrize(
    "count", [pytest.param(1_000, id="10 pages"), pytest.param(10_000, id="100 pages", marks=pytest.mark.long)]
)
def test_pages_through_a_kill_in_the_middle(tmp_path: Path, count: int) -> None:
    with RestServer() as server:
        items = RestList(server, "/items", pages="link", page_size=PAGE, etags=True)
        items.publish(*({"id": number, "even": number % 2 == 0} for number in range(count)))
        with Airflow(tmp_path / "airflow", Path(__file__).parent / "dags", env={"TEST_ENDPOINT": items.url}) as airflow:
            triggerer = airflow.components[airflow.triggerers[0]]

            def stored(least: int) -> bool:
                found = had(airflow)
                return len(found) == 2 and sum(len(numbers) for numbers in found.values()) >= least

            airflow.wait_for("a third of the events", lambda: stored(count // 2), limit_seconds=300)
            airflow.kill(triggerer.name)
            before = {asset: sum(numbers.values()) for asset, numbers in had(airflow).items()}
            assert all(count // 10 < number < count for number in before.values()), before
            triggerer.start()
            airflow.wait_for("all events", lambda: stored(count + count // 2), limit_seconds=400)
            asked = items.not_modified
            airflow.wait_for("two more polls of all pages", lambda: items.not_modified >= asked + 2 * count // PAGE)
            found = had(airflow)
            state = airflow.query(
                "SELECT asset.name, count(*), max(length(value)) FROM asset_state_store AS state "
                "JOIN asset ON asset.id = state.asset_id GROUP BY asset.name ORDER BY 1"
            )
            print(f"stored at the kill: {before}; state: {state}")
    assert set(found["whole_rest_all"]) == set(range(count))
    assert set(found["whole_rest_even"]) == set(range(0, count, 2))
    for asset, numbers in found.items():
        twice = sum(numbers.values()) - len(numbers)
        print(f"{asset}: {twice} items came twice")
        assert max(numbers.values()) <= 2
        assert twice <= PAGE, f"{asset}: more than a page came twice"

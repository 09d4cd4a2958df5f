"""What the tests of whole Airflow processes share: numbered messages, and Dags that want all, the even, the odd."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from types import ModuleType

from services.airflow import Airflow


def numbered(numbers: Iterable[int]) -> list[str]:
    """Bodies, in their order."""
    return [json.dumps({"n": n, "even": n % 2 == 0}) for n in numbers]


def shares(sent: Collection[str]) -> dict[str, set[str]]:
    """What of the numbered bodies each asset must get."""
    even = {body for body in sent if json.loads(body)["even"]}
    return {"whole_all": set(sent), "whole_even": even, "whole_odd": set(sent) - even}


def bodies_by_asset(airflow: Airflow) -> dict[str, Counter[str]]:
    """Which bodies each asset's stored events hold, and how often."""
    found: dict[str, Counter[str]] = {}
    for event in airflow.asset_events():
        held = (json.dumps(message["body"]) for message in event.extra["payload"]["messages"])
        found.setdefault(event.asset, Counter()).update(held)
    return found


def numbers_by_asset(airflow: Airflow) -> dict[str, Counter[int]]:
    """Which of the numbered messages each asset's stored events hold, and how often."""
    return {
        asset: Counter({json.loads(body)["n"]: times for body, times in bodies.items()})
        for asset, bodies in bodies_by_asset(airflow).items()
    }


def assert_each_has_its_own(airflow: Airflow, sent: Collection[str]) -> None:
    """Nothing else is stored than each asset's share."""
    assert {asset: set(bodies) for asset, bodies in bodies_by_asset(airflow).items()} == shares(sent)


def assert_nothing_lost(airflow: Airflow, sent: Collection[str], left: int) -> None:
    """Each asset has its share, and no more of it came twice than ``left``: what the source still had at the kill."""
    found = bodies_by_asset(airflow)
    for asset, expected in shares(sent).items():
        assert expected <= set(found[asset]), f"{asset} lost {expected - set(found[asset])}"
        again = sum(found[asset][body] - 1 for body in expected)
        assert again <= left, "something came twice that had been settled"


def successful(airflow: Airflow) -> set[str]:
    """Dags that have a successful run."""
    return {dag for dag, states in airflow.client.run_states().items() if states.get("success")}


def dag_folder(folder: Path, dags: str, example: ModuleType) -> Path:
    """Make ``folder``, with the Dags of a test, a path beside this file, and the example's."""
    folder.mkdir()
    for file in (Path(__file__).parent / dags, Path(str(example.__file__))):
        (folder / file.name).symlink_to(file)
    return folder

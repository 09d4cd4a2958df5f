"""Events without a run are found and given back, and nothing else is."""

from __future__ import annotations

from tests.requeue.airflow_database import AirflowDatabase, watched


def test_the_rest_of_a_burst(database: AirflowDatabase) -> None:
    database.parse("d", [watched("a")])
    events = database.burst("a", 5)
    database.schedule()
    assert 0 < len(database.taken("d")) < 5, "this Airflow strands nothing"
    assert database.queued() == set()
    database.schedule()
    assert 0 < len(database.taken("d")) < 5, "this Airflow takes them later"

    assert database.sweep() == 1
    database.schedule()
    assert database.taken("d") == events, "each once"
    assert len(database.runs("d")) == 2
    assert database.sweep() == 0
    assert database.queued() == set()

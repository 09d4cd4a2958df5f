"""Whole Airflow processes on Service Bus: a triggerer killed between storing and completing makes no second event where
that was asked for; what is sent again is one. A watcher that didn't ask shows that there was a repeat.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path

import pytest

from services.airflow import Airflow
from services.postgres import PostgresServer
from services.proxy import TcpProxy
from services.service_bus import ServiceBusServer
from tests.service_bus.conftest import through
from tests.whole.common import numbers_by_asset
from tests.whole.test_service_bus import send_numbers

QUEUE = "repeats"
LOCK_SECONDS = 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_between_storing_and_completing(tmp_path: Path) -> None:
    with ServiceBusServer(tmp_path / "service-bus") as server, PostgresServer(tmp_path / "pg") as database:
        server.create_queue(QUEUE, lock_seconds=LOCK_SECONDS)
        port = int(re.findall(r"127\.0\.0\.1:(\d+)", server.connection_string)[0])
        with TcpProxy(port) as proxy:
            connection = {"conn_type": "azure_service_bus", "schema": through(server.connection_string, proxy.port)}
            with Airflow(
                tmp_path / "airflow",
                Path(__file__).parent / "dags_repeats_service_bus",
                database=database.create_database("repeats"),
                connections={"azure_service_bus_default": json.dumps(connection)},
                env={"TEST_QUEUE": QUEUE},
            ) as airflow:
                triggerer = airflow.components[airflow.triggerers[0]]

                def had(numbers: range) -> dict[str, Counter[int]]:
                    found = numbers_by_asset(airflow)
                    return {
                        asset: Counter({n: found.get(asset, Counter())[n] for n in numbers})
                        for asset in ("plain", "durable")
                    }

                again = 0
                for kill in range(2):
                    new = range(50 * kill, 50 * kill + 50)
                    send_numbers(server, new, queue=QUEUE)
                    limit = time.monotonic() + 120
                    while not all(sum(numbers.values()) for numbers in had(new).values()):
                        assert time.monotonic() < limit
                        time.sleep(0.02)
                    # What is decided can't be completed any more; what is with the watchers is stored.
                    proxy.stall()
                    time.sleep(0.5)
                    triggerer.kill()
                    proxy.cut()
                    proxy.heal()
                    triggerer.start()
                    airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
                    found = had(new)
                    assert found["durable"] == dict.fromkeys(new, 1)
                    assert min(found["plain"].values()) >= 1
                    again += sum(found["plain"].values()) - len(new)
                print(f"\n{again} of 100 messages came twice")
                assert again > 0, "no kill hit anything stored: this shows little"

                # What somebody sends again is no repeat.
                send_numbers(server, range(50), queue=QUEUE)
                airflow.wait_for("an empty queue", lambda: server.pending(QUEUE) == 0)
                assert had(range(50))["durable"] == dict.fromkeys(range(50), 2)

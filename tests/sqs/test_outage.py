"""A minute without the server.

On a real server, under watchers on Airflow's real `SharedStreamManager`.
"""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.airflow_loop import triggerer, until
from tests.sqs.conftest import Sqs
from tests.sqs.streams import is_empty, send, trigger


@pytest.mark.slow
async def test_a_minute_without_the_server(sqs: Sqs, caplog: pytest.LogCaptureFixture) -> None:
    queue = sqs.queue()
    async with triggerer() as running:
        watchers = [running.start(trigger(sqs, queue)) for _ in range(5)]
        await send(queue, [{"n": n} for n in range(50)])
        await until(lambda: all(len(w.ids) >= 50 for w in watchers), "the first fifty")
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="airflow_provider_sharedstream"):
            sqs.proxy.cut()
            await asyncio.to_thread(queue.send, [json.dumps({"n": n}) for n in range(50, 100)])
            await asyncio.sleep(60)
            sqs.proxy.heal()
            await until(lambda: all(len(set(w.ids)) >= 100 for w in watchers), "all hundred", 180)
        failures = [r for r in caplog.records if "next try in" in r.getMessage()]
        tries = [r for r in caplog.records if r.levelno >= logging.WARNING]
        # Backoff doubles from one second: a minute has room for few steps even where the jitter is kind.
        assert 2 <= len(failures) <= 25
        assert len(tries) <= len(failures) + 2, [r.getMessage() for r in tries]
        assert not any(watcher.restarts for watcher in watchers)
        await until(is_empty(queue), "an empty queue")

"""What is left of streams that have ended."""

from __future__ import annotations

import pytest

from tests.airflow_loop import triggerer, until
from tests.pubsub.conftest import PubSub, send, trigger
from tests.pubsub.consumers import texts
from tests.pubsub.observed import census


@pytest.mark.slow
async def test_nothing_is_left_of_a_hundred_streams(pubsub: PubSub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0")
    orders = pubsub.subscription()
    streams = pubsub.open_streams
    counts = []
    for number in range(100):
        async with triggerer() as running:
            watcher = running.start(trigger(pubsub, orders, batch_window_seconds=0))
            await send(orders, texts(1, number))
            await until(lambda watcher=watcher: watcher.ids, "a message")
        if number in (9, 99):
            counts.append(await census())
    assert counts[1].tasks <= counts[0].tasks
    assert counts[1].threads <= counts[0].threads
    assert counts[1].sockets <= counts[0].sockets + 1
    await until(lambda: pubsub.open_streams == streams, "the streams' end")

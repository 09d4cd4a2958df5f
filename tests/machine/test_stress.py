"""Random trouble at the broker and with the watchers: nothing is lost, nothing overtakes, nothing is left over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_sharedstream.messages import Message, RejectMessage
from airflow_provider_sharedstream.stream.disposition import Disposition
from tests.machine import virtual
from tests.machine.brokers import KINDS, Kind, ModelConsumer, Trouble
from tests.machine.running import CONSUMERS, PRODUCERS, SETTINGS, QueueTrigger, assert_at_rest, triggerer
from tests.machine.virtual import until

DICE: dict[str, random.Random] = {}
SHARES = {"reject": 0.0, "fail": 0.0}


async def unreliable(message: Message) -> Any:
    """Takes a while, fails now and then, and refuses some for good."""
    dice = DICE["function"]
    if dice.random() < SHARES["fail"]:
        raise RuntimeError("not now")
    await asyncio.sleep(dice.random() * 0.2)
    if message.body["n"] % 10 < SHARES["reject"] * 10:
        raise RejectMessage("this kind is refused")
    return message.body


chances = st.sampled_from([0.0, 0.0, 0.05, 0.3])
troubles = st.builds(
    Trouble,
    fails=chances,
    fails_after=chances,
    partly=chances,
    cancels=st.sampled_from([0.0, 0.1]),
    slow=chances,
    takes_back=st.sampled_from([0.0, 0.0, 0.01]),
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    trouble=troubles,
    batch_size=st.sampled_from([1, 3, 20]),
    reject=st.sampled_from([0.0, 0.2]),
    fail=st.sampled_from([0.0, 0.1]),
    restarts=st.booleans(),
)
def test_any_trouble(
    kind: Kind, seed: int, trouble: Trouble, batch_size: int, reject: float, fail: float, restarts: bool
) -> None:
    SHARES.update(reject=reject, fail=fail)
    virtual.run(_any_trouble(kind, seed, trouble, batch_size, restarts))


async def _any_trouble(kind: Kind, seed: int, trouble: Trouble, batch_size: int, restarts: bool) -> None:
    dice = DICE["function"] = random.Random(seed)
    broker = ModelConsumer(kind, dice)
    name = broker.stream
    CONSUMERS[name] = lambda: broker
    SETTINGS[name] = {
        "batch_size": batch_size,
        "batch_window_seconds": 0.1,
        "max_in_flight": 40,
        "max_deliveries": None,
        "release_delay_seconds": 1.0,
        "max_release_delay_seconds": 5.0,
        "ack_timeout_seconds": 60.0,
    }
    async with triggerer(log_seconds=0.01, store_seconds=0.001, ack_timeout=60.0) as running:
        steady = running.start(QueueTrigger(name), restart=True)
        other = running.start(
            QueueTrigger(name, apply_function="tests.machine.test_stress.unreliable", on_error="release"), restart=True
        )
        broker.trouble = trouble
        for _ in range(6):
            broker.publish(10)
            await asyncio.sleep(dice.random() * 10)
            if restarts:
                await running.cancel(other)
                other = running.start(other.trigger)
        broker.trouble = Trouble()
        await until(lambda: broker.left == 0, f"{broker.left} messages to be settled", 600)
        assert not broker.complaints, broker.complaints[:3]
        assert steady.restarts == 0
        assert steady.failure is None
        seen = {(message["key"], message["body"]["n"]) for message in steady.messages}
        assert seen == {(s.lane, s.number) for line in broker.lanes.values() for s in line}, "lost for one that stayed"
        fates = Counter(s.done for line in broker.lanes.values() for s in line)
        assert fates[Disposition.ACCEPT] + fates[Disposition.DEAD_LETTER] == 60
        refused = {s.number for line in broker.lanes.values() for s in line if s.done is Disposition.DEAD_LETTER}
        assert all(number % 10 < SHARES["reject"] * 10 for number in refused)
        assert len(PRODUCERS[name]) == 1
        await until(lambda: len(PRODUCERS[name][0].holdings.budget) == 0, "everything to be sealed")
    (producer,) = PRODUCERS.pop(name)
    assert_at_rest(producer)
    del CONSUMERS[name], SETTINGS[name]

"""What SDKs do to their callers, and what comes of it here."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from airflow_provider_sharedstream.stream import calls
from airflow_provider_sharedstream.stream.calls import CallAborted, CallHangs, call, is_transient
from tests.machine.fakes import FakeConsumer
from tests.machine.virtual import in_virtual_time, now, settle_down, until


async def returns(value: Any, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    return value


async def raises(error: BaseException) -> None:
    raise error


@in_virtual_time
async def test_what_comes_back_comes_back() -> None:
    assert await call("it", returns(5, 1.0)) == 5
    with pytest.raises(KeyError):
        await call("it", raises(KeyError("k")))


@in_virtual_time
async def test_a_client_that_cancels_its_caller_does_not() -> None:
    """As a client does that is closed under a call."""

    async def aborted() -> None:
        asyncio.current_task().cancel()  # type: ignore[union-attr]
        await asyncio.sleep(1)

    for coroutine in (raises(asyncio.CancelledError()), aborted()):
        with pytest.raises(CallAborted, match="it was given up"):
            await call("it", coroutine)


@in_virtual_time
async def test_a_call_that_hangs_is_given_up() -> None:
    ended: list[str] = []

    async def hangs() -> None:
        try:
            await asyncio.sleep(10_000)
        finally:
            ended.append("cancelled")

    started = now()
    with pytest.raises(CallHangs, match="it has not come back for 120 s"):
        await call("it", hangs())
    assert now() - started == pytest.approx(120.0)
    assert ended == ["cancelled"]


@in_virtual_time
async def test_without_a_limit_it_is_waited_for_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await call("it", returns("late", 200.0), seconds=None) == "late"
    assert [r.getMessage() for r in caplog.records] == [
        f"it has not come back for {seconds} s; it is waited for" for seconds in (60, 120, 180)
    ]


@in_virtual_time
async def test_our_cancellation_is_never_swallowed() -> None:
    """An SDK's `wait_for` swallows it when it comes as the wait ends; some catch everything."""

    async def stubborn() -> str:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass
        return "what is that to me"

    late: list[str] = []
    caller = asyncio.create_task(call("it", stubborn(), late=late.append))
    await asyncio.sleep(1)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert late == ["what is that to me"], "what came all the same isn't lost"


@in_virtual_time
async def test_what_comes_in_the_very_moment_of_the_cancellation_is_not_lost() -> None:
    late: list[Any] = []
    future: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def receive() -> str:
        return await future

    caller = asyncio.create_task(call("it", receive(), late=late.append))
    await settle_down()
    future.set_result("message")
    await asyncio.sleep(0)
    caller.cancel()
    result = (await asyncio.gather(caller, return_exceptions=True))[0]
    assert (result == "message") != (late == ["message"]), "once, one way or the other"


@in_virtual_time
async def test_one_that_can_not_be_cancelled_holds_nobody_up() -> None:
    stop = asyncio.Event()

    async def deaf() -> None:
        while not stop.is_set():
            try:
                await stop.wait()
            except asyncio.CancelledError:
                pass

    caller = asyncio.create_task(call("it", deaf()))
    await asyncio.sleep(1)
    started = now()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert now() - started <= 10
    assert len(calls._abandoned) == 1
    stop.set()
    await until(lambda: not calls._abandoned)


@in_virtual_time
async def test_an_error_after_it_was_given_up_is_nobodys() -> None:
    async def fails_late() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise KeyError("late") from None

    with pytest.raises(CallHangs):
        await call("it", fails_late(), seconds=5)


def test_what_an_adapter_can_not_judge_is_not_transient(caplog: pytest.LogCaptureFixture) -> None:
    consumer = FakeConsumer()
    assert is_transient(consumer, ConnectionResetError())
    assert not is_transient(consumer, KeyError())
    consumer.transient = lambda error: 1 / 0 > 0
    assert not is_transient(consumer, KeyError())
    assert is_transient(consumer, CallAborted())
    assert is_transient(consumer, CallHangs())
    assert caplog.records[-1].exc_info

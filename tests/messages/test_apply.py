from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.messages.apply import MAX_TASKS, MAX_THREADS, ApplyFunction, Kind
from airflow_provider_sharedstream.stream.errors import InvalidArgument
from airflow_provider_sharedstream.stream.message import Message
from tests.messages import functions

HERE = "tests.messages.functions"
EVERY_KIND = ["decide", "decide_async", "an_instance", "Callable.method", "returns_awaitable"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    functions.release.clear()
    functions.running.clear()
    functions.most.clear()
    functions.called.clear()
    yield
    functions.release.set()


def messages(*bodies: Any) -> list[Message]:
    return [Message(f"m-{number}", body, {"h": "v"}, attributes={"topic": "t"}) for number, body in enumerate(bodies)]


async def until(true: Callable[[], object]) -> None:
    async def come() -> None:
        while not true():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(come(), 60)


@pytest.mark.parametrize("name", EVERY_KIND)
async def test_each_result_is_told_apart_and_in_order(name: str) -> None:
    bodies = [
        "emit",
        "skip",
        "as it is",
        "refuse",
        "raise",
        "bytes",
        "tuple",
        "message",
        "exit",
        "stop",
        "bad str",
        "emit",
    ]
    results = await ApplyFunction(f"{HERE}.{name}").apply(messages(*bodies))
    assert [result.kind.value for result in results] == [
        "emit", "skip", "emit", "rejected", "failed", "failed", "emit", "emit", "failed", "failed", "failed", "emit"
    ]  # fmt: skip
    made = [result.message.body if result.message else None for result in results]
    assert made == [
        {"made": "m-0"},
        None,
        "as it is",
        None,
        None,
        None,
        [1, 2],
        "new",
        None,
        None,
        None,
        {"made": "m-11"},
    ]
    assert results[3].reason == "no order number"
    assert results[4].reason == f"{HERE}.{name} raised KeyError: 'order'"
    assert "body.a[0] can't be stored: 1 bytes" in results[5].reason
    replaced = results[7].message
    assert replaced is not None
    assert replaced.id == "m-7"
    assert replaced.headers == {"h": "<1 bytes where text or another JSON value is expected>"}
    assert results[0].message is not None
    assert results[0].message.headers == {"h": "v"}


async def test_a_body_that_is_replaced_is_no_longer_base64() -> None:
    outer = [
        Message("m", "emit", attributes={"body_encoding": "base64"}),
        Message("n", "kept", attributes={"body_encoding": "base64"}),
    ]
    replaced, kept = await ApplyFunction(f"{HERE}.decide").apply(outer)
    assert replaced.message is not None
    assert replaced.message.attributes == {}
    assert kept.message is not None
    assert kept.message.attributes == {"body_encoding": "base64"}


@pytest.mark.parametrize("name", ["hang", "hang_async"])
async def test_one_that_takes_too_long_is_told_and_the_others_go_on(name: str) -> None:
    function = ApplyFunction(f"{HERE}.{name}", timeout_seconds=0.2)
    results = await function.apply(messages("a", "hang", "b"))
    assert [result.kind for result in results] == [Kind.EMIT, Kind.TIMED_OUT, Kind.EMIT]
    assert results[1].reason == f"{HERE}.{name} took longer than 0.2 s"
    assert function.hung == (1 if name == "hang" else 0)
    functions.release.set()
    await until(lambda: not function.hung)
    assert (await function.apply(messages("hang" if name == "hang" else "c")))[0].kind is Kind.EMIT


async def test_a_task_that_swallows_its_cancellation_is_given_up() -> None:
    function = ApplyFunction(f"{HERE}.hang_and_swallow", timeout_seconds=0.1)
    try:
        results = await function.apply(messages("hang", "a"))
        assert [result.kind for result in results] == [Kind.TIMED_OUT, Kind.EMIT]
        assert function.hung == 1
    finally:
        functions.release.set()  # else the loop could never be closed
    await until(lambda: not function.hung)


async def test_tasks_that_hang_keep_their_places_and_nothing_waits_for_them() -> None:
    function = ApplyFunction(f"{HERE}.hang_and_swallow", timeout_seconds=0.2)
    try:
        results = await function.apply(messages(*["hang"] * MAX_TASKS))
        assert [result.kind for result in results] == [Kind.TIMED_OUT] * MAX_TASKS
        assert function.hung == MAX_TASKS
        (result,) = await function.apply(messages("a"))
        assert result.kind is Kind.NOT_CALLED
    finally:
        functions.release.set()  # else the loop could never be closed
    await until(lambda: not function.hung)
    assert [result.kind for result in await function.apply(messages("a"))] == [Kind.EMIT]


async def test_threads_that_hang_keep_their_places_and_nothing_waits_for_them() -> None:
    function = ApplyFunction(f"{HERE}.hang", timeout_seconds=0.2)
    before = threading.active_count()
    results = await function.apply(messages(*["hang"] * MAX_THREADS, "a", "b"))
    kinds = [result.kind for result in results]
    assert kinds == [Kind.TIMED_OUT] * MAX_THREADS + [Kind.NOT_CALLED] * 2
    assert function.hung == MAX_THREADS
    assert threading.active_count() - before == MAX_THREADS
    # The next batch is told at once, and no thread is added.
    (result,) = await function.apply(messages("c"))
    assert result.kind is Kind.NOT_CALLED
    assert result.reason == f"{MAX_THREADS} earlier calls of {HERE}.hang hang"
    assert "m-8" not in functions.called
    functions.release.set()
    await until(lambda: not function.hung)
    (result,) = await function.apply(messages("d"))
    assert result.kind is Kind.EMIT


async def test_a_batch_ends_in_time_and_the_rest_was_not_called() -> None:
    function = ApplyFunction(f"{HERE}.hang", timeout_seconds=30, batch_timeout_seconds=0.3)
    loop = asyncio.get_running_loop()
    loop.call_later(1, functions.release.set)
    results = await function.apply(messages(*["hang"] * MAX_THREADS, "a", "b"))
    assert [result.kind for result in results[:MAX_THREADS]] == [Kind.EMIT] * MAX_THREADS
    assert [result.kind for result in results[MAX_THREADS:]] == [Kind.NOT_CALLED] * 2
    assert len(functions.called) == MAX_THREADS


@pytest.mark.parametrize(("name", "limit"), [("busy", MAX_THREADS), ("busy_async", MAX_TASKS)])
async def test_calls_at_once_are_bounded_and_results_keep_the_order(name: str, limit: int) -> None:
    results = await ApplyFunction(f"{HERE}.{name}").apply(messages(*range(250)))
    assert [result.message.body for result in results if result.message] == list(range(250))
    assert 1 < functions.most["busy"] <= limit


async def test_threads_are_daemons_of_our_own() -> None:
    (result,) = await ApplyFunction(f"{HERE}.in_which_thread").apply(messages("x"))
    assert result.message is not None
    assert result.message.body["daemon"] is True
    assert result.message.body["name"].startswith(f"apply-{HERE}")


async def test_cancellation_passes_through_and_withdraws_what_waits() -> None:
    function = ApplyFunction(f"{HERE}.hang", timeout_seconds=60)
    task = asyncio.ensure_future(function.apply(messages(*["hang"] * MAX_THREADS, *"abcdef")))
    await until(lambda: len(functions.called) == MAX_THREADS)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    functions.release.set()
    await until(lambda: not function.hung)
    assert len(functions.called) == MAX_THREADS


async def test_a_function_that_cancels_itself_has_failed() -> None:
    for name in ("decide", "decide_async"):
        (result,) = await ApplyFunction(f"{HERE}.{name}").apply(messages("cancel"))
        assert result.kind is Kind.FAILED


def test_a_function_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    program = (
        "import asyncio\n"
        "from airflow_provider_sharedstream.messages.apply import ApplyFunction\n"
        "from airflow_provider_sharedstream.stream.message import Message\n"
        f"function = ApplyFunction({HERE + '.hang'!r}, timeout_seconds=0.1)\n"
        "print(asyncio.run(function.apply([Message('m', 'hang')]))[0].kind.value)\n"
    )
    # The function waits for an hour; a thread that is joined at exit would too.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "timed_out"), done.stderr


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("decide", "expected the dotted path of a callable"),
        (None, "expected the dotted path of a callable"),
        ("no_such_package.x", "there is no module 'no_such_package'"),
        (f"{HERE}.nothing", f"module '{HERE}' has no function 'nothing'"),
        (f"{HERE}.Callable.nothing", f"module '{HERE}' has no 'Callable.nothing'"),
        (f"{HERE}.not_callable", "is int, which can't be called"),
        ("broken_module.x", "importing broken_module failed: ZeroDivisionError: division by zero"),
        (
            "needy_module.x",
            "importing needy_module failed: No module named 'not_there'",
        ),
    ],
)
async def test_what_cannot_be_imported_is_said_at_once(
    path: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    (tmp_path / "needy_module.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = ApplyFunction(path)
    with pytest.raises(InvalidArgument) as caught:
        function.validate()
    assert reason in str(caught.value)
    with pytest.raises(InvalidArgument):
        await function.apply(messages("x"))


@pytest.mark.parametrize("seconds", [0, -1, "5", None, float("nan"), True])
def test_a_time_limit_is_a_positive_number(seconds: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout_seconds: expected a positive number"):
        ApplyFunction(f"{HERE}.decide", timeout_seconds=seconds)

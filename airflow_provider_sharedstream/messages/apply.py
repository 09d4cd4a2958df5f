"""A user's function between the match and the event."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from airflow_provider_sharedstream.messages.callables import is_async, resolve
from airflow_provider_sharedstream.messages.payload import described, storable, visible_text
from airflow_provider_sharedstream.messages.threads import Call, DaemonThreads
from airflow_provider_sharedstream.stream.errors import InvalidArgument, RejectMessage, UndecodableMessage
from airflow_provider_sharedstream.stream.message import Message

MAX_THREADS = 8
"""Most calls of one synchronous function at once."""
MAX_TASKS = 100
"""Most calls of one asynchronous function at once."""
MAX_REASON = 500
"""Longest reason that is passed on, in characters."""
CANCEL_GRACE_SECONDS = 1.0
"""How long an asynchronous function that ran out of time has to end after it was cancelled."""


class Kind(Enum):
    """What came of one call."""

    EMIT = "emit"
    SKIP = "skip"
    REJECTED = "rejected"
    """The function refused the message for good."""
    FAILED = "failed"
    """The function raised, or returned what can't be stored."""
    TIMED_OUT = "timed_out"
    """The function took longer than ``timeout_seconds``."""
    NOT_CALLED = "not_called"
    """The message's turn didn't come: not its fault, it shall come again."""


class Applied(NamedTuple):
    """What came of one call.

    :param message: with EMIT, what to emit.
    :param reason: with the others but SKIP, why.
    """

    kind: Kind
    message: Message | None = None
    reason: str = ""


SKIPPED = Applied(Kind.SKIP)


class ApplyFunction:
    """Calls a user's function on messages.

    The function takes a :class:`Message` and returns the body to emit (``message.body`` for it as it is; a Message
    replaces headers and attributes too), or None to skip the message, or raises :class:`RejectMessage`. An ``async``
    function runs in the triggerer's event loop and must not block it; any other one runs in a thread, and may block.

    :param dotted_path: where it is.
    :param timeout_seconds: how long one call may take.
    :param batch_timeout_seconds: how long all calls for one batch may take together. A batch has to be through before
        Airflow's ``[triggerer] shared_stream_ack_timeout`` (300 s), or the watcher is failed and not started again.
    :raises InvalidArgument: a time that isn't a positive number.
    """

    def __init__(
        self, dotted_path: str, *, timeout_seconds: float = 30.0, batch_timeout_seconds: float = 120.0
    ) -> None:
        for name, seconds in (("timeout_seconds", timeout_seconds), ("batch_timeout_seconds", batch_timeout_seconds)):
            number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
            if not (number and seconds > 0):
                raise InvalidArgument(f"{name}: expected a positive number of seconds, got {seconds!r}")
        self.dotted_path = dotted_path
        self.timeout_seconds = timeout_seconds
        self.batch_timeout_seconds = batch_timeout_seconds
        self._threads = DaemonThreads(MAX_THREADS, f"apply-{dotted_path}")
        self._hung = 0
        self._abandoned: set[asyncio.Future[Any]] = set()

    @property
    def hung(self) -> int:
        """Calls that ran out of time and still go on; each keeps its place."""
        return self._hung

    def validate(self) -> None:
        """Import the function.

        :raises InvalidArgument: it can't be imported or called.
        """
        resolve(self.dotted_path, "apply_function")

    async def apply(self, messages: Sequence[Message]) -> list[Applied]:
        """Return what came of each message, in order.

        :raises InvalidArgument: the function can't be imported.
        """
        function = resolve(self.dotted_path, "apply_function")
        asynchronous = is_async(function)
        call = self._call_async if asynchronous else self._call_in_thread
        limit = MAX_TASKS if asynchronous else MAX_THREADS
        deadline = asyncio.get_running_loop().time() + self.batch_timeout_seconds
        results: list[Applied] = [SKIPPED] * len(messages)
        turns = iter(range(len(messages)))

        async def work() -> None:
            for index in turns:  # shared by all workers: each takes the next message
                results[index] = await self._call_in_time(call, function, messages[index], deadline, limit)

        if len(messages) == 1:
            await work()
        else:
            workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(messages)))]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
        return results

    async def _call_in_time(
        self,
        call: Callable[[Callable[..., Any], Message, float], Awaitable[Any]],
        function: Callable[..., Any],
        message: Message,
        deadline: float,
        limit: int,
    ) -> Applied:
        left = deadline - asyncio.get_running_loop().time()
        if left <= 0:
            return Applied(Kind.NOT_CALLED, reason=f"the batch took longer than {self.batch_timeout_seconds:g} s")
        if self._hung >= limit:
            return Applied(Kind.NOT_CALLED, reason=f"{self._hung} earlier calls of {self.dotted_path} hang")
        try:
            made = await call(function, message, left)
            return _emit(message, made)
        except RejectMessage as error:
            return Applied(Kind.REJECTED, reason=_short(error.reason))
        except _OutOfTime as error:
            return Applied(error.kind, reason=_short(error))
        except UndecodableMessage as error:
            return Applied(Kind.FAILED, reason=f"{self.dotted_path} returned what can't be stored: {_short(error)}")
        except Exception as error:
            problem = f"{self.dotted_path} raised {type(error).__name__}: {_safe_str(error)}"
            return Applied(Kind.FAILED, reason=_short(problem))

    async def _call_in_thread(self, function: Callable[..., Any], message: Message, left: float) -> Any:
        call = self._threads.submit(lambda: function(message))
        try:
            await self._turn(call, left)
            made = await self._result(call.result)
        finally:
            self._threads.withdraw(call)
        # A function that isn't declared async may still return something to be awaited.
        return await self._result(asyncio.ensure_future(_contained(made))) if inspect.isawaitable(made) else made

    async def _turn(self, call: Call, left: float) -> None:
        """Wait until a thread takes ``call``: as soon as one before it ends, unless all of them hang."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + left
        while not call.started.done():
            await asyncio.wait((call.started,), timeout=min(self.timeout_seconds, max(deadline - loop.time(), 0)))
            if call.started.done():
                return
            if self._hung >= MAX_THREADS and self._threads.withdraw(call):
                raise _OutOfTime(Kind.NOT_CALLED, f"{self._hung} earlier calls of {self.dotted_path} hang")
            if loop.time() >= deadline and self._threads.withdraw(call):
                raise _OutOfTime(Kind.NOT_CALLED, f"no thread became free within {left:.3g} s")

    async def _call_async(self, function: Callable[..., Any], message: Message, left: float) -> Any:
        return await self._result(asyncio.ensure_future(_contained(function(message))))

    async def _result(self, future: asyncio.Future[Any]) -> Any:
        try:
            await asyncio.wait((future,), timeout=self.timeout_seconds)
        except asyncio.CancelledError:
            self._abandon(future)
            raise
        if not future.done():
            if isinstance(future, asyncio.Task):
                future.cancel()
                await asyncio.wait((future,), timeout=CANCEL_GRACE_SECONDS)
            self._abandon(future)
            raise _OutOfTime(Kind.TIMED_OUT, f"{self.dotted_path} took longer than {self.timeout_seconds:g} s")
        if future.cancelled():
            raise RuntimeError("cancelled itself")
        return future.result()

    def _abandon(self, future: asyncio.Future[Any]) -> None:
        """Stop waiting for a call, which goes on for as long as it likes and keeps its place until it ends."""
        if isinstance(future, asyncio.Task):
            future.cancel()
        if future.done():
            _look_at(future)
            return
        self._hung += 1
        self._abandoned.add(future)  # the loop keeps weak references only
        future.add_done_callback(self._ended)

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._hung -= 1
        self._abandoned.discard(future)
        _look_at(future)


async def _contained(made: Awaitable[Any]) -> Any:
    try:
        return await made
    except SystemExit as error:  # in a task it would end the triggerer
        raise RuntimeError(f"SystemExit: {error}") from None


class _OutOfTime(Exception):
    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def _emit(message: Message, made: Any) -> Applied:
    if made is None:
        return SKIPPED
    if isinstance(made, Message):
        return Applied(
            Kind.EMIT,
            message.replace(
                body=storable(made.body),
                headers=described(made.headers),
                key=None if made.key is None else visible_text(str(made.key)),
                attributes=described(made.attributes),
            ),
        )
    body = made if made is message.body and not isinstance(made, (list, dict)) else storable(made)
    attributes = message.attributes
    if made is not message.body and "body_encoding" in attributes:
        attributes = {name: value for name, value in attributes.items() if name != "body_encoding"}
    return Applied(Kind.EMIT, message.replace(body=body, attributes=attributes))


def _look_at(future: asyncio.Future[Any]) -> None:
    """Fetch an error that nobody waits for, so that it isn't reported as never retrieved."""
    if not future.cancelled():
        future.exception()


def _safe_str(error: Any) -> str:
    try:
        return str(error)
    except Exception:  # an exception class of the user's whose __str__ fails
        return "(its text can't be made)"


def _short(reason: Any) -> str:
    text = visible_text(_safe_str(reason))
    return text if len(text) <= MAX_REASON else text[:MAX_REASON] + "..."

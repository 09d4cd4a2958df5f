"""What a test breaks. Everything here may be called from any thread, while the emulator serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from threading import Condition

import grpc

from tests.emulators.pubsub.errors import ApiError

REASSIGNED = "The service was unable to fulfill your request. Please try again. [code=8a75]"
"""What the service says when it closes a stream, as it does with every one sooner or later."""


@dataclass
class _Refusal:
    method: str
    error: ApiError
    times: int | None
    applied: bool


@dataclass
class Faults:
    """Nothing is broken at first.

    :param changed: the emulator's lock; open streams wait on it.
    """

    changed: Condition
    stream_seconds: float | None = None
    """Each stream is ended after that time, with UNAVAILABLE, as the service does after some minutes; None: never."""
    _refusals: list[_Refusal] = field(default_factory=list)
    _failing_ack_ids: int = 0
    _ended_at: float = 0.0
    _ended_with: ApiError | None = None

    def refuse(
        self,
        method: str,
        code: grpc.StatusCode,
        message: str = "Refused by the test.",
        *,
        times: int | None = None,
        applied: bool = False,
    ) -> None:
        """Answer calls with an error.

        :param method: "Acknowledge", "StreamingPull", "Publish"...
        :param code: UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED...
        :param times: so many calls; None: until `heal`.
        :param applied: the call takes effect all the same, as when its answer is lost. Not for StreamingPull.
        """
        with self.changed:
            self._refusals.append(_Refusal(method, ApiError(code, message), times, applied))

    def end_streams(self, code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE, message: str = REASSIGNED) -> None:
        """End every stream that is open now; a new one may be opened at once."""
        with self.changed:
            self._ended_at, self._ended_with = time.monotonic(), ApiError(code, message)
            self.changed.notify_all()

    def fail_ack_ids(self, count: int) -> None:
        """Under exactly-once delivery the next `count` ack ids aren't processed: a transient failure."""
        with self.changed:
            self._failing_ack_ids += count

    def heal(self) -> None:
        """Break nothing any more."""
        with self.changed:
            self._refusals.clear()
            self._failing_ack_ids = 0
            self.stream_seconds = None

    def refusal(self, method: str, *, applied: bool = False) -> ApiError | None:
        """What the emulator has to answer to this call, counted as one time; the lock is held."""
        for refusal in self._refusals:
            if refusal.method == method and refusal.applied == applied:
                if refusal.times is not None:
                    refusal.times -= 1
                    if refusal.times == 0:
                        self._refusals.remove(refusal)
                return refusal.error
        return None

    def take_failing(self, ack_ids: list[str]) -> tuple[list[str], list[str]]:
        """Which of them fail, and the others; the lock is held."""
        count = min(self._failing_ack_ids, len(ack_ids))
        self._failing_ack_ids -= count
        return ack_ids[:count], ack_ids[count:]

    def stream_ended(self, opened_at: float) -> ApiError | None:
        """Whether a stream opened then is over; the lock is held."""
        if self._ended_with is not None and opened_at <= self._ended_at:
            return self._ended_with
        if self.stream_seconds is not None and time.monotonic() >= opened_at + self.stream_seconds:
            return ApiError(grpc.StatusCode.UNAVAILABLE, REASSIGNED)
        return None

"""What Pub/Sub's errors mean: wait, ask somebody to change something, or this message is no longer ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable

TRANSIENT_CODES = frozenset(
    {
        "ABORTED",
        "CANCELLED",
        "DEADLINE_EXCEEDED",
        "INTERNAL",
        "RESOURCE_EXHAUSTED",
        "UNAVAILABLE",
        "UNKNOWN",
    }
)
"""Status codes after which the same request may succeed; the client library's own list, and CANCELLED, which a
channel's end makes of its calls.
"""

STREAMING_REFUSED = frozenset({"FAILED_PRECONDITION", "UNIMPLEMENTED"})
"""A server, or a proxy before it, that serves no StreamingPull."""

PLUGIN_FAILED = "Getting metadata from plugin failed"
"""gRPC's words for credentials that gave no token, under the status UNAVAILABLE."""

ACK_ID = re.compile(r"\back(nowledgement)?[ _]ids?\b", re.IGNORECASE)
"""What a refused request was about, in the words of the service and of its emulators."""

EXACTLY_ONCE = "EXACTLY_ONCE_ACKID_FAILURE"
PERMANENT = "PERMANENT_FAILURE"


class NotConnected(ConnectionError):
    """The client was closed under a call."""


class AckIdFailed(Exception):
    """With exactly-once delivery: this one acknowledgement wasn't carried out, and may be tried again."""


def code_of(error: BaseException) -> str | None:
    """Return the name of the gRPC status code, or None where ``error`` is no answer of Pub/Sub's."""
    name = getattr(getattr(error, "grpc_status_code", None), "name", None)
    return None if name is None else str(name)


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` may go away by itself."""
    if isinstance(error, (SourceUnavailable, LeaseLost)):
        return False
    if (code := code_of(error)) is not None:
        return code in TRANSIENT_CODES
    if isinstance(error, (AckIdFailed, NotConnected, OSError, TimeoutError)):
        return True
    # A token endpoint that is away: google-auth's TransportError, or a RefreshError that says so.
    return type(error).__name__ == "TransportError" or bool(getattr(error, "retryable", False))


def failed_ack_ids(error: BaseException, ack_ids: list[str]) -> dict[str, BaseException]:
    """Return what failed of a request to acknowledge or to set a deadline.

    :raises BaseException: ``error`` itself, where it concerns the request as a whole.
    """
    if code_of(error) == "INVALID_ARGUMENT":
        if getattr(error, "reason", None) == EXACTLY_ONCE:
            reasons: Mapping[str, str] = getattr(error, "metadata", None) or {}
            return {ack_id: _failure(reasons[ack_id]) for ack_id in ack_ids if ack_id in reasons}
        if ACK_ID.search(str(error)):
            # Ids of a subscription that was deleted meanwhile, or made anew. Nothing was carried out; which of them
            # are meant isn't said.
            return dict.fromkeys(ack_ids, LeaseLost(str(error)))
    raise error


def _failure(reason: str) -> BaseException:
    return LeaseLost(reason) if reason.startswith(PERMANENT) else AckIdFailed(reason)


def clear(error: BaseException, where: str, identity: str) -> BaseException:
    """Return ``error``, or one that says what to change where somebody has to change something.

    :param where: the argument that names what was asked for, and its value.
    :param identity: the argument that names who asked, and its value.
    """
    code = code_of(error)
    if isinstance(error, SourceUnavailable) or code is None:
        return error
    say = _TEXTS.get(code)
    return error if say is None else SourceUnavailable(say(where, identity, str(error)))


_TEXTS: Mapping[str, Callable[[str, str, str], str]] = {
    "NOT_FOUND": lambda where, identity, error: (
        f"{where}: there is nothing of that name in that project. Create it, or correct the name or project_id. "
        f"Pub/Sub says: {error}"
    ),
    "PERMISSION_DENIED": lambda where, identity, error: (
        f"{where}: access denied. The identity of {identity} needs the role Pub/Sub Subscriber "
        "(pubsub.subscriptions.consume) on the subscription, and Pub/Sub Publisher (pubsub.topics.publish) on a "
        f"dead_letter_topic. Pub/Sub says: {error}"
    ),
    "UNAUTHENTICATED": lambda where, identity, error: f"{where}: Google refuses the credentials of {identity}: {error}",
    "FAILED_PRECONDITION": lambda where, identity, error: (
        f"{where}: it can't be pulled from as it is (pushed, exported or detached?). Pub/Sub says: {error}"
    ),
}

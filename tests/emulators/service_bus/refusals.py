"""Everything the emulator says no to: the error conditions, status codes and sentences of the real service."""

from __future__ import annotations

import time

MESSAGE_LOCK_LOST = "com.microsoft:message-lock-lost"
SESSION_LOCK_LOST = "com.microsoft:session-lock-lost"
SERVER_BUSY = "com.microsoft:server-busy"


class Refusal(Exception):
    """Why a link, a message, a settlement or a request is refused.

    :param condition: AMQP error condition, as it stands in a detach, a rejected outcome or a management response.
    :param description: the sentence that goes with it.
    :param status_code: HTTP-like status of a ``$cbs`` or ``$management`` response.
    """

    def __init__(self, condition: str, description: str, status_code: int = 400) -> None:
        super().__init__(f"{condition}: {description}")
        self.condition = condition
        self.description = description
        self.status_code = status_code


def entity_not_found(path: str) -> Refusal:
    return Refusal("amqp:not-found", f"The messaging entity 'sb://emulator/{path}' could not be found.", 404)


def entity_exists(path: str) -> Refusal:
    return Refusal("com.microsoft:entity-already-exists", f"The entity '{path}' already exists.", 409)


def entity_disabled(path: str) -> Refusal:
    return Refusal("com.microsoft:entity-disabled", f"The messaging entity 'sb://emulator/{path}' is disabled.", 403)


def unauthorized(right: str, path: str) -> Refusal:
    return Refusal(
        "amqp:unauthorized-access",
        f"Unauthorized access. '{right}' claim(s) are required to perform this operation. "
        f"Resource: 'sb://emulator/{path}'.",
        401,
    )


def invalid_signature() -> Refusal:
    return Refusal("com.microsoft:auth-failed", "InvalidSignature: The token has an invalid signature.", 401)


def malformed_token(why: str) -> Refusal:
    return Refusal("com.microsoft:auth-failed", f"MalformedToken: {why}", 401)


def expired_token(expired_at: float) -> Refusal:
    when = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(expired_at))
    return Refusal("com.microsoft:auth-failed", f"ExpiredToken: The token is expired. Expiration time: '{when}'.", 401)


def token_ran_out() -> Refusal:
    return Refusal("amqp:unauthorized-access", "ExpiredToken: The token of this link has expired.", 401)


def session_required() -> Refusal:
    return Refusal(
        "amqp:not-allowed",
        "It is not possible for an entity that requires sessions to create a non-sessionful message receiver.",
    )


def session_not_supported() -> Refusal:
    return Refusal(
        "amqp:not-allowed",
        "A sessionful message receiver cannot be created on an entity that does not require sessions. "
        "Ensure RequiresSession is set to true when creating a Queue or Subscription to enable sessionful behavior.",
    )


def session_id_missing() -> Refusal:
    return Refusal(
        "amqp:not-allowed",
        "The SessionId was not set on a message, and it cannot be sent to the entity. Entities that have session "
        "support enabled can only receive messages that have the SessionId set to a valid value.",
    )


def session_taken(session_id: str) -> Refusal:
    return Refusal(
        "com.microsoft:session-cannot-be-locked",
        f"The requested session '{session_id}' cannot be accepted. It may be locked by another receiver.",
        410,
    )


def session_lock_lost() -> Refusal:
    return Refusal(
        SESSION_LOCK_LOST, "The session lock has expired on the MessageSession. Accept a new MessageSession.", 410
    )


def message_lock_lost() -> Refusal:
    return Refusal(
        MESSAGE_LOCK_LOST,
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        "queue.",
        410,
    )


def message_not_found() -> Refusal:
    return Refusal(
        "com.microsoft:message-not-found", "Failed to lock one or more specified messages. They do not exist.", 404
    )


def message_too_large(limit: int) -> Refusal:
    return Refusal(
        "amqp:link:message-size-exceeded", f"The received message exceeds the limit of {limit} bytes on this link."
    )


def nothing_in_time() -> Refusal:
    return Refusal("com.microsoft:timeout", "The operation did not complete within the allotted timeout.", 408)


def idle_link() -> Refusal:
    return Refusal(
        "amqp:link:detach-forced", "The link is force detached. Details: IdleTimerExpired: Idle timeout: 00:10:00."
    )


def topic_is_no_source(path: str) -> Refusal:
    return Refusal(
        "amqp:not-allowed", f"'{path}' is a topic: a receiver can be created on one of its subscriptions only."
    )


def dead_letter_queue_is_no_target(path: str) -> Refusal:
    return Refusal("amqp:not-allowed", f"'{path}' is a dead-letter queue: nothing can be sent to it.")


def not_implemented(operation: str) -> Refusal:
    return Refusal("amqp:not-implemented", f"The emulator does not know the operation '{operation}'.", 501)


def invalid_request(why: str) -> Refusal:
    return Refusal("com.microsoft:argument-error", why, 400)


def internal_error(error: BaseException) -> Refusal:
    return Refusal("amqp:internal-error", f"The emulator failed: {error!r}", 500)

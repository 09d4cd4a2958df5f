"""What the Azure SDK's errors mean: wait, ask somebody to change something, or a lock is no longer ours."""

from __future__ import annotations

from typing import Any

from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable

NOT_FOUND, UNAUTHORIZED = 404, 401
"""Status codes of the answer to a token. The SDK has one error for both, without the text."""

REFUSALS = frozenset(
    {
        "amqp:not-allowed",
        "amqp:not-found",
        "amqp:not-implemented",
        "amqp:unauthorized-access",
        "com.microsoft:entity-disabled",
    }
)
"""Conditions that stay until somebody changes something (Service Bus: AMQP errors)."""


class NotConnected(ConnectionError):
    """The link was closed, or had broken, under a call."""


class NoAnswer(ConnectionError):
    """Service Bus takes what is sent and says nothing."""


def is_lock_lost(error: BaseException) -> bool:
    """Whether Service Bus says that a message is no longer ours; the link is as good as before."""
    return type(error).__name__ == "MessageLockLostError"


def is_busy(error: BaseException) -> bool:
    """Whether Service Bus asks to be left alone for a while; the link is as good as before."""
    return type(error).__name__ == "ServiceBusServerBusyError"


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` may go away by itself."""
    if isinstance(error, (SourceUnavailable, LeaseLost)):
        return False
    if isinstance(error, (OSError, TimeoutError)):
        return True
    from azure.core.exceptions import AzureError

    # Nearly all that the SDK raises comes from a connection; what doesn't has become a SourceUnavailable.
    return isinstance(error, AzureError) and condition_of(error) not in REFUSALS


def condition_of(error: BaseException) -> str:
    """Return the AMQP error condition, or nothing."""
    condition = getattr(error, "_condition", None)
    return condition.decode() if isinstance(condition, bytes) else str(getattr(condition, "value", condition) or "")


def said(error: BaseException) -> str:
    """Return what Service Bus said, which for a refused token stands in the error's cause alone."""
    inner = getattr(error, "inner_exception", None)
    description = getattr(inner, "status_description", None) or error
    text = description.decode("utf-8", "replace") if isinstance(description, bytes) else str(description)
    return " ".join(text.split())


def clock_is_off(seconds_left: float) -> SourceUnavailable:
    """Return the error for locks that have run out when they arrive: the SDK would refuse to settle anything."""
    return SourceUnavailable(
        f"what arrives is locked until {-seconds_left:.0f} s ago by this machine's clock. Set the clock, or, where the "
        "entity's lock duration is some seconds only, make it longer."
    )


class Places:
    """What the errors' texts name.

    :param entity: the arguments that name the entity: ``queue_name='orders'``.
    :param connection: the argument that names the connection.
    :param session_enabled: whether sessions were asked for.
    """

    def __init__(self, entity: str, connection: str, *, session_enabled: bool) -> None:
        self.entity = entity
        self.connection = connection
        self.session_enabled = session_enabled

    def clear(self, error: Exception, namespace: str) -> Exception:
        """Return ``error``, or one that says what to change where somebody has to change something."""
        if isinstance(error, (SourceUnavailable, OSError)):
            return error
        text = said(error)
        kind, condition = type(error).__name__, condition_of(error)
        inner: Any = getattr(error, "inner_exception", None)
        status = getattr(inner, "status_code", None)
        if status == NOT_FOUND or kind == "MessagingEntityNotFoundError":
            return SourceUnavailable(
                f"{self.entity}: the namespace {namespace} has nothing of that name. Create it, or correct the name, "
                f"or the namespace in {self.connection}."
            )
        if kind == "ServiceBusAuthorizationError" or condition == "amqp:unauthorized-access":
            return SourceUnavailable(
                f"{self.entity}: {self.connection} may not receive from it. Give its shared access policy the right "
                f"Listen, or its identity the role Azure Service Bus Data Receiver. Service Bus says: {text}"
            )
        if status == UNAUTHORIZED:
            return SourceUnavailable(
                f"{self.connection}: Service Bus refuses its credentials for {self.entity}. Correct the policy's name "
                f"and key, or renew the signature. Service Bus says: {text}"
            )
        if kind == "MessagingEntityDisabledError" or condition == "com.microsoft:entity-disabled":
            return SourceUnavailable(f"{self.entity}: it is disabled for receiving. Set its status to Active.")
        if condition == "amqp:not-allowed":
            return SourceUnavailable(self._not_allowed(text))
        if _is_refused_credential(inner) or _is_refused_credential(error):
            return SourceUnavailable(f"{self.connection}: its credentials give no token: {text}")
        return error

    def _not_allowed(self, text: str) -> str:
        if self.session_enabled and "does not require sessions" in text:
            return f"{self.entity}: it has no sessions. Set session_enabled=False."
        if not self.session_enabled and "requires sessions" in text:
            return f"{self.entity}: it requires sessions. Set session_enabled=True."
        return f"{self.entity}: Service Bus does not allow this: {text}"


def _is_refused_credential(error: BaseException | None) -> bool:
    """Whether azure-identity got no token although somebody was there to ask: the wrong secret, no identity."""
    from azure.core.exceptions import ClientAuthenticationError

    return isinstance(error, ClientAuthenticationError)

"""What SQS and its SDK answer when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_sharedstream.stream.errors import SourceUnavailable

TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServerError",
        "KmsThrottled",
        "OverLimit",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
"""Error codes after which the same request may succeed (common errors of the SQS API; OverLimit: 120,000 in flight)."""

GONE_CODES = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "AWS.SimpleQueueService.MessageNotInflight"})
"""The receipt handle means nothing any more: somebody else has the message, or it is gone."""


class NotConnected(ConnectionError):
    """The client was closed under a call."""


class EntryFailed(Exception):
    """One entry of a batch request failed."""

    def __init__(self, failed: Mapping[str, Any]) -> None:
        super().__init__(f"{failed.get('Code')}: {failed.get('Message')}")
        self.code = failed.get("Code")
        self.sender_fault = bool(failed.get("SenderFault"))


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later without anybody changing anything."""
    if isinstance(error, SourceUnavailable):
        return False
    if isinstance(error, EntryFailed):
        return error.code in TRANSIENT_CODES or not error.sender_fault
    code, status = _code_and_status(error)
    if code is not None:
        return code in TRANSIENT_CODES or status >= 500
    # The SDK's own: EndpointConnectionError, ReadTimeoutError and their kind.
    from botocore.exceptions import ConnectionError as NoConnection
    from botocore.exceptions import HTTPClientError

    return isinstance(error, (NoConnection, HTTPClientError, OSError, TimeoutError, NotConnected))


def clear(error: Exception, where: str, connection: str) -> Exception:
    """Return ``error``, or one that says what to change where somebody has to change something.

    :param where: the argument that names the queue, with its value.
    :param connection: the argument that names the connection, with its value.
    """
    code, _ = _code_and_status(error)
    if isinstance(error, SourceUnavailable) or code in TRANSIENT_CODES:
        return error
    from botocore.exceptions import NoCredentialsError, NoRegionError, PartialCredentialsError, ProfileNotFound

    if code is not None and ("NonExistentQueue" in code or "QueueDoesNotExist" in code):
        return SourceUnavailable(
            f"{where}: there is no such queue in this region and account. Create it, or correct the name."
        )
    if code in ("InvalidAddress", "UnsupportedOperation"):
        return SourceUnavailable(f"{where}: the address is not a queue's: {error}")
    if code in ("AccessDenied", "AccessDeniedException", "AWS.SimpleQueueService.AccessDenied"):
        return SourceUnavailable(
            f"{where}: access denied. The identity of {connection} needs sqs:GetQueueUrl, GetQueueAttributes, "
            "ReceiveMessage, DeleteMessage and ChangeMessageVisibility, and sqs:SendMessage on the dead-letter "
            f"queue. SQS says: {error}"
        )
    if code in ("InvalidClientTokenId", "SignatureDoesNotMatch", "ExpiredToken", "UnrecognizedClientException"):
        return SourceUnavailable(f"{where}: AWS refuses the credentials of {connection}: {error}")
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, ProfileNotFound)):
        return SourceUnavailable(
            f"{where}: no credentials. Give {connection} a login and password, a profile or a role. {error}"
        )
    if isinstance(error, NoRegionError):
        return SourceUnavailable(f"{where}: no region. Set region_name, or region_name in the extra of {connection}.")
    return error


def _code_and_status(error: BaseException) -> tuple[str | None, int]:
    """Return what AWS answered; None and 0 where nothing was answered."""
    response = getattr(error, "response", None)
    if not isinstance(response, Mapping):
        return None, 0
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return str(response.get("Error", {}).get("Code")), int(status)

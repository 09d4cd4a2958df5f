"""Everything the emulator says no to: the codes, reasons and sentences of the service."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

INVALID_ACK_ID = "PERMANENT_FAILURE_INVALID_ACK_ID"
UNORDERED_ACK_ID = "TRANSIENT_FAILURE_UNORDERED_ACK_ID"
TRANSIENT_FAILURE = "TRANSIENT_FAILURE_OTHER"


class ApiError(Exception):
    """A call's or a stream's end with a status.

    :param code: gRPC status code.
    :param message: the sentence that goes with it.
    :param info: machine-readable detail, as the service attaches it.
    """

    def __init__(self, code: grpc.StatusCode, message: str, info: ErrorInfo | None = None) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.info = info

    def abort(self, context: grpc.ServicerContext) -> None:
        """End the call with this status; always raises."""
        number, _ = self.code.value
        status = Status(code=number, message=self.message)
        if self.info is not None:
            detail = AnyMessage()
            detail.Pack(self.info)
            status.details.append(detail)
        context.abort_with_status(rpc_status.to_status(status))


def not_found(what: str, path: str) -> ApiError:
    return ApiError(grpc.StatusCode.NOT_FOUND, f"Resource not found ({what}={path.rpartition('/')[2]}).")


def already_exists(what: str, path: str) -> ApiError:
    return ApiError(
        grpc.StatusCode.ALREADY_EXISTS, f"Resource already exists in the project ({what}={path.rpartition('/')[2]})."
    )


def invalid(message: str) -> ApiError:
    return ApiError(grpc.StatusCode.INVALID_ARGUMENT, message)


def malformed_ack_id(ack_id: str) -> ApiError:
    return invalid(f"You have passed an invalid ack ID to the service (ack_id={ack_id}).")


def failed_ack_ids(failures: Mapping[str, str]) -> ApiError:
    """The answer of a unary call under exactly-once delivery; ack ids that aren't in it were processed.

    :param failures: ack id to PERMANENT_FAILURE_... or TRANSIENT_FAILURE_...
    """
    info = ErrorInfo(reason="EXACTLY_ONCE_ACKID_FAILURE", domain="pubsub.googleapis.com", metadata=dict(failures))
    return ApiError(
        grpc.StatusCode.INVALID_ARGUMENT,
        "Some acknowledgement ids in the request were invalid. This could be because the acknowledgement ids have "
        "expired or the acknowledgement ids were malformed.",
        info,
    )


MAX_REQUEST_BYTES = 524_288
"""Of Acknowledge, ModifyAckDeadline and each request on a stream, https://cloud.google.com/pubsub/quotas"""

MAX_PUBLISH_BYTES = 10_000_000
MAX_PUBLISH_MESSAGES = 1000


def check_size(request: Any, limit: int = MAX_REQUEST_BYTES) -> None:
    """Raises ApiError for a request that is too long on the wire."""
    if type(request).pb(request).ByteSize() > limit:
        raise invalid(f"Request payload size exceeds the limit: {limit} bytes.")


def check_deadline(what: str, seconds: int, shortest: int) -> None:
    """Raises ApiError for an ack deadline outside `shortest` to 600 seconds."""
    if not shortest <= seconds <= 600:
        raise invalid(f"Invalid {what} given: {seconds}. It must be between {shortest} and 600 seconds.")

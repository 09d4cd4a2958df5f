"""What may go wrong with an endpoint, in clear words, and whether it may go away by itself."""

from __future__ import annotations

import random
import ssl
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from airflow_provider_sharedstream.brokers.rest.store import StateStoreTrouble
from airflow_provider_sharedstream.stream.errors import SharedStreamError, SourceUnavailable

LONGEST_RETRY_AFTER_SECONDS = 3600.0
"""A server that asks for more is asked again after this."""


class AnswerUnusable(SharedStreamError):
    """The endpoint answered, but with nothing that can be used; the next answer may be better."""


class ServerTrouble(SharedStreamError):
    """The server answered that it can't answer now."""


class Throttled(SharedStreamError):
    """The server said when to come again.

    :param seconds: in how long, with some jitter on top.
    """

    def __init__(self, status: int, seconds: float) -> None:
        super().__init__(f"status {status}, to be asked again in {seconds:.0f} s")
        self.seconds = seconds


class NotConnected(ConnectionError):
    """The client was closed under a call."""


def is_transient(error: BaseException) -> bool:
    """Whether ``error`` may go away by itself."""
    if isinstance(error, SourceUnavailable):
        return False
    if isinstance(error, (AnswerUnusable, ServerTrouble, StateStoreTrouble, OSError, TimeoutError)):
        return True
    import httpx

    return isinstance(error, (httpx.TransportError, httpx.StreamError))


def clear(error: Exception, stream: str) -> Exception:
    """Return ``error`` with the endpoint named, and what to change where somebody has to change something."""
    where = f"the endpoint {stream}"
    if isinstance(error, (SourceUnavailable, AnswerUnusable, ServerTrouble)):
        return type(error)(f"{where}: {error}")
    if isinstance(error, ImportError):
        return SourceUnavailable(
            f"the HTTP client is not installed ({error}); install airflow-provider-sharedstream[rest]"
        )
    if (why := _distrust(error)) is not None:
        return SourceUnavailable(
            f"{where}: the server's certificate is not trusted ({why}). "
            "Name the file of its authority in 'verify' of the connection's extra."
        )
    return error


def retry_after_seconds(value: str | None) -> float | None:
    """Return what a ``Retry-After`` asks for: seconds, or until a date; None: nothing that can be understood."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdigit():
        seconds = float(value)
    else:
        try:
            moment = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        seconds = (moment - datetime.now(timezone.utc)).total_seconds()
    return min(max(0.0, seconds), LONGEST_RETRY_AFTER_SECONDS)


def refusal(status: int, retry_after: str | None) -> SharedStreamError:
    """Return the error that an answer with this status is."""
    seconds = retry_after_seconds(retry_after)
    if seconds is not None and status in (403, 429, 503):
        # So that all who were told the same don't come at the same moment.
        return Throttled(status, seconds * random.uniform(1.0, 1.1))
    if status in (401, 403, 407):
        return SourceUnavailable(f"status {status}: access is refused. Are the credentials of http_conn_id right?")
    if status in (404, 410):
        return SourceUnavailable(f"status {status}: there is nothing at this address. Is endpoint right?")
    if status in (408, 425, 429) or status >= 500:
        return ServerTrouble(f"status {status}")
    return SourceUnavailable(f"status {status}: the endpoint refuses the request. Are its arguments right?")


def _distrust(error: BaseException) -> str | None:
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ssl.SSLCertVerificationError):
            return seen.verify_message or str(seen)
        seen = seen.__cause__ or seen.__context__
    return None


def too_large(limit: int) -> SourceUnavailable:
    """Return the error that an answer of more than ``limit`` bytes is."""
    return SourceUnavailable(
        f"the answer is larger than {limit} bytes. Ask for smaller pages, or raise max_response_bytes."
    )

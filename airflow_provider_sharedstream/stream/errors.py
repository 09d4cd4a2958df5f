"""What can go wrong, by what has to be done about it."""

from __future__ import annotations


class SharedStreamError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidArgument(SharedStreamError, ValueError):
    """An argument of a trigger is wrong; the text names it, what came and what is expected.

    A :class:`ValueError`, so that Airflow reports it as an import error of the Dag file.
    """


class SourceUnavailable(SharedStreamError):
    """The source can't be used until somebody changes something: a missing queue, a refused credential.

    Adapters raise it with a text that says what to change. The stream is held and tried again slowly.
    """


class RejectMessage(SharedStreamError):
    """Raised by an ``apply_function`` to reject a message for good.

    :param reason: why; it travels with the message to the dead-letter place.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UndecodableMessage(SharedStreamError):
    """The bytes of a message can't be turned into a body that Airflow can store."""


class LeaseLost(SharedStreamError):
    """The broker says that a delivery is no longer ours; it has gone, or will go, to somebody again."""


def error_text(error: BaseException) -> str:
    """Return an error's kind and text, for a line of the log; where it has no text, as many have none, that of what
    caused it.
    """
    kind = type(error).__name__
    seen = [error]
    while not str(seen[-1]).strip():
        last = seen[-1]
        cause = last.__cause__ or (None if last.__suppress_context__ else last.__context__)
        if cause is None or cause in seen:
            return kind if last is error else f"{kind} ({type(last).__name__})"
        seen.append(cause)
    told = seen[-1]
    return f"{kind}: {error}" if told is error else f"{kind} ({type(told).__name__}: {told})"

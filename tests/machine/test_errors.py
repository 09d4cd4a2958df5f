"""A line of the log that says why never ends with nothing."""

from __future__ import annotations

import itertools

import pytest

from airflow_provider_sharedstream.stream.errors import error_text


class ReadError(Exception):
    """As a client's: raised with the text of what it wraps, which may be empty."""


def raised(*errors: Exception, hidden: bool = False) -> Exception:
    """Return the last of errors each of which was raised while the one before it was handled."""
    for before, error in itertools.pairwise(errors):
        error.__context__ = before
        error.__suppress_context__ = hidden
    return errors[-1]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (
            raised(ConnectionResetError(104, "reset"), ReadError("")),
            "ReadError (ConnectionResetError: [Errno 104] reset)",
        ),
        (raised(OSError("deep"), EOFError(), ReadError(" ")), "ReadError (OSError: deep)"),
        (raised(EOFError(), ReadError("")), "ReadError (EOFError)"),
        (raised(EOFError("not meant"), ReadError(""), hidden=True), "ReadError"),
        (raised(OSError("below"), ReadError("enough")), "ReadError: enough"),
    ],
)
def test_the_reason_is_that_of_the_cause_where_an_error_has_none(error: Exception, text: str) -> None:
    assert error_text(error) == text


def test_errors_that_cause_each_other_have_an_end() -> None:
    one, other = ReadError(), EOFError()
    one.__cause__, other.__cause__ = other, one
    assert error_text(one) == "ReadError (EOFError)"

"""In which history a partition is read: what tells a repeat from what somebody put back.

What we commit carries our mark: a random history, which goes on from commit to commit, and the offset itself. A
committed offset without it, or with that of another offset, was set by somebody else: a group set back, a tool that
copied offsets from elsewhere, a consumer of another kind, an older version of this package. Then a new history begins,
and what has been read before under its id is read again on purpose.
"""

from __future__ import annotations

import secrets
from typing import Any

MARK = "sharedstream"
HISTORY_BYTES = 6


def new_history() -> str:
    """Return the name of a history: eight characters."""
    return secrets.token_urlsafe(HISTORY_BYTES)


def metadata(history: str, offset: int) -> str:
    """Return what a commit of ``offset`` carries: some 40 bytes. Brokers take 4,096, unless they are told otherwise."""
    return f"{MARK}:{history}:{offset}"


def history_of(committed: Any) -> str | None:
    """Return the history that a committed offset belongs to; None: it isn't of our making.

    :param committed: offset and metadata, as aiokafka has them.
    """
    mark, _, rest = (committed.metadata or "").partition(":")
    history, _, offset = rest.partition(":")
    return history if mark == MARK and history and offset == str(committed.offset) else None

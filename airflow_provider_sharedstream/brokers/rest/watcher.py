"""What a watcher of an endpoint says of itself."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

FirstPoll = Literal["all", "new"]


class RestWatcher(NamedTuple):
    """One watcher.

    :param number: its trigger's.
    :param assets: the assets that its events belong to, in alphabetical order; none: it keeps its position in memory.
    :param first_poll: whether what its first poll finds is new to it (``all``), or only what comes later (``new``).
    """

    number: Any
    assets: tuple[str, ...]
    first_poll: FirstPoll = "all"

    @property
    def lead(self) -> str:
        """The asset whose position it goes on from."""
        return self.assets[0] if self.assets else ""


SILENT = RestWatcher(None, ())
"""A watcher that says nothing of itself: it is taken to look at everything."""

"""A roster that a test writes by hand, as the supervisor would."""

from __future__ import annotations

import time

from airflow_provider_sharedstream.stream.roster import Departed, Listed, Roster, RosterReader, Sight, StreamRoster

JOB = 7
SOURCE = "queue"


class HandWritten(RosterReader):
    """Shows one stream's roster, always just read, unless it is stopped.

    :param stream: the stream's name.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(None)
        self.stream = stream
        self.members: dict[int, Listed] = {}
        self.departed: dict[int, Departed] = {}
        self.others: dict[str, StreamRoster] = {}
        """Other streams, by name."""
        self.owner: int | None = JOB
        self.stopped_at: float | None = None
        self.blind = False

    @property
    def expected(self) -> bool:
        return True

    def add(self, *numbers: int) -> None:
        for number in numbers:
            self.members[number] = Listed(time.monotonic() if self.members else 0.0, f"watcher {number}")

    def look(self, timeout_seconds: float) -> Sight:
        if self.blind:
            return Sight(None, True)
        stream = StreamRoster(self.owner, dict(self.members), dict(self.departed), SOURCE)
        known = {self.stream: stream} if self.members or self.departed else {}
        return Sight(Roster(JOB, self.stopped_at or time.monotonic(), {**known, **self.others}), False)

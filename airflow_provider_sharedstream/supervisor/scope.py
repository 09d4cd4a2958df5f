"""Which triggers a triggerer takes.

Neither its job nor the job's row says it, and what does, Airflow's job runner, is not handed to listeners. But the job
runner forks the process for the triggers, so it is among the callers of whoever is called at that fork.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import NamedTuple


class Scope(NamedTuple):
    """Which triggers a triggerer takes.

    :param team: its ``--team-name``, where teams are in use.
    :param queues: its ``--queues``; None: triggers without a queue.
    """

    team: str | None
    queues: frozenset[str] | None

    def takes(self, team: str | None, queue: str | None) -> bool:
        """Whether it may run such triggers."""
        return self.team == team and (queue in self.queues if self.queues else queue is None)


def scope_of_caller() -> Scope | None:
    """Return which triggers the triggerer takes whose job runner this is called by; None: it is called by none.

    :raises AttributeError: the job runner is not what it was in Airflow 3.3.0 to 3.3.2.
    """
    from airflow.configuration import conf
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        runner = frame.f_locals.get("self")
        if isinstance(runner, TriggererJobRunner):
            teams = conf.getboolean("core", "multi_team", fallback=False)
            return Scope(runner.team_name if teams else None, frozenset(runner.queues) if runner.queues else None)
        frame = frame.f_back
    return None

"""Which triggers a triggerer takes: as its job runner, which calls the listener at its fork, has it."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_sharedstream.supervisor.scope import Scope, scope_of_caller

PROGRAM = textwrap.dedent(
    """
    import json, os, sys, time
    from airflow.jobs.job import Job
    from airflow.jobs.triggerer_job_runner import TriggererJobRunner
    from airflow_provider_sharedstream.supervisor import listener

    {patch}
    started = []
    listener._watch = lambda job_id, path, scope: started.append(scope)
    listener._requeue = lambda: None
    listener._recall = lambda folder: None

    class Runner(TriggererJobRunner):
        def _execute(self):
            for _ in range(2):
                pid = os.fork()
                if pid == 0:
                    os._exit(0)
                os.waitpid(pid, 0)
            time.sleep(0.5)

    job = Job()
    options = json.loads(sys.argv[1])
    runner = Runner(job, queues=set(options["queues"]) if options["queues"] else None, team_name=options["team"])
    {before}
    job.id = 7
    runner._execute()
    print(json.dumps([
        None if scope is None else [scope.team, sorted(scope.queues) if scope.queues else None] for scope in started
    ]))
    """
)


def run(
    queues: list[str] | None = None,
    team: str | None = None,
    *,
    multi_team: bool = True,
    patch: str = "",
    before: str = "",
) -> tuple[list[Any], str]:
    """Return with which scopes threads were started, and what was said."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import os; os.environ['AIRFLOW__CORE__MULTI_TEAM'] = '{multi_team}'\n"
            + PROGRAM.format(patch=patch, before=before),
            json.dumps({"queues": queues, "team": team}),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


@pytest.mark.parametrize(
    ("queues", "team", "multi_team", "scope"),
    [
        (None, None, False, [None, None]),
        (["a", "b"], None, False, [None, ["a", "b"]]),
        (["a"], "red", True, ["red", ["a"]]),
        (None, "red", False, [None, None]),
    ],
    ids=["plain", "queues", "team", "a team where there are no teams"],
)
def test_it_is_what_the_triggerer_was_started_with(
    queues: list[str] | None, team: str | None, multi_team: bool, scope: Any
) -> None:
    assert run(queues, team, multi_team=multi_team)[0] == [scope]


def test_an_airflow_with_other_job_runners_is_said_and_nothing_starts() -> None:
    started, said = run(before="del runner.queues")
    assert started == []
    lines = [line for line in said.splitlines() if "not kept together" in line]
    assert len(lines) == 1
    assert "queues" in lines[0]
    assert "Traceback" not in said


def test_a_job_that_cannot_be_asked_is_said_and_nothing_starts() -> None:
    started, said = run(before="type(job).job_type = property(lambda self: 1 / 0)")
    assert started == []
    assert said.count("not kept together") == 1
    assert "Traceback" not in said


def test_outside_of_a_triggerer_there_is_none() -> None:
    assert scope_of_caller() is None


def test_what_it_takes() -> None:
    assert Scope(None, None).takes(None, None)
    assert not Scope(None, None).takes(None, "a")
    assert not Scope(None, None).takes("red", None)
    assert Scope("red", frozenset({"a"})).takes("red", "a")
    assert not Scope("red", frozenset({"a"})).takes("red", None)

"""Where the thread starts, and where it doesn't: with real forks, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROGRAM = textwrap.dedent(
    """
    import json, os, sys, threading, time
    from airflow_provider_sharedstream.stream.roster import PATH_VARIABLE
    from airflow_provider_sharedstream.supervisor import listener

    started = []
    listener._watch = lambda job_id, path, scope: started.append((job_id, str(path)))
    # They would log to where the result goes.
    listener._requeue = lambda: None
    listener._recall = lambda folder: None
    kind, number = json.loads(sys.argv[1])

    class Job:
        job_type = None
        id = None

    class Marker:
        pass

    component = Marker() if kind == "marker" else Job()
    listener.TriggererListener().on_starting(component)
    early = PATH_VARIABLE in os.environ

    def fork():
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writer, json.dumps([os.environ.get(PATH_VARIABLE), threading.active_count()]).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        time.sleep(0.2)
        return json.loads(os.read(reader, 10000))

    before = fork() if kind == "early fork" else None
    if kind != "marker":
        component.job_type = "TriggererJob" if kind == "early fork" else kind
        component.id = number
    children = [fork(), fork()]
    print(json.dumps({"early": early, "before": before, "children": children, "started": started}))
    """
)


def run(kind: str, number: int | None = 7) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([kind, number])],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_triggerers_supervisor_watches_and_its_runner_knows_the_file() -> None:
    found = run("TriggererJob")
    assert not found["early"], "nothing is done before the fork"
    ((number, path),) = found["started"]
    assert number == 7
    assert [child[0] for child in found["children"]] == [path, path]
    assert found["children"][0][1] == 1, "no thread of ours was running at the fork"
    assert not Path(path).parent.exists(), "removed when the supervisor ends"


@pytest.mark.parametrize("kind", ["SchedulerJob", "DagProcessorJob", "marker"])
def test_no_other_component_does_anything(kind: str) -> None:
    found = run(kind)
    assert found["started"] == []
    assert [child[0] for child in found["children"]] == [None, None]


def test_a_fork_before_the_job_has_a_type_is_not_the_one() -> None:
    found = run("early fork")
    assert found["before"][0] is None
    assert len(found["started"]) == 1


def test_a_job_that_was_never_stored_has_nobody_to_watch_for() -> None:
    assert run("TriggererJob", None)["started"] == []


def test_airflow_loads_the_plugin() -> None:
    from airflow.plugins_manager import _get_plugins

    plugins, errors = _get_plugins()
    assert "sharedstream" in {plugin.name for plugin in plugins}
    assert errors == {}

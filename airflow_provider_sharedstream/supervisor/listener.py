"""The plugin: it starts the cohort's thread where a triggerer starts, and nowhere else; and it brings a macro.

Airflow calls :meth:`TriggererListener.on_starting` in every component, when the component's job is made. The job has
neither an id nor a type yet. The supervisor of a triggerer then forks the process that runs the triggers. Just before
that fork the job has both, and just after it a thread can be started: one that ran already at the fork could leave a
lock taken for ever in the child. So the listener waits for the fork. A component that is no triggerer is left alone at
its first fork.
"""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin

from airflow_provider_sharedstream.messages import messages
from airflow_provider_sharedstream.stream.roster import PATH_VARIABLE
from airflow_provider_sharedstream.supervisor import shared_folder
from airflow_provider_sharedstream.supervisor.scope import Scope, scope_of_caller

log = logging.getLogger(__name__)


class _AtFork:
    """What is done around the fork of a triggerer's runner, once."""

    def __init__(self, job: Any) -> None:
        self._job: Any = job
        self._start: tuple[int, Path, Scope | None] | None = None
        os.register_at_fork(before=self.before, after_in_parent=self.after)

    def before(self) -> None:
        """Name the roster's file to the process that is about to be made."""
        job = self._job
        if job is None:
            return
        try:
            if job.job_type is None:
                return
            self._job = None
            if job.job_type == "TriggererJob" and job.id is not None:
                scope = scope_of_caller()
                self._start = (job.id, _name_file(), scope)
        except Exception as error:
            self._job = None
            log.error("The watchers of one source are not kept together: %s", error)

    def after(self) -> None:
        """Start the threads, in the supervisor."""
        if self._start is not None:
            start, self._start = self._start, None
            threading.Thread(target=_watch, args=start, name="sharedstream-cohort", daemon=True).start()
            threading.Thread(target=_requeue, name="sharedstream-requeue", daemon=True).start()
            threading.Thread(target=_recall, args=(start[1].parent,), name="sharedstream-recall", daemon=True).start()


def _name_file() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="airflow-sharedstream-"))
    atexit.register(shared_folder.remove, folder, os.getpid())
    path = folder / "roster.json"
    os.environ[PATH_VARIABLE] = str(path)
    return path


def _watch(job_id: int, path: Path, scope: Scope | None) -> None:
    from airflow_provider_sharedstream.supervisor.watch import watch

    watch(job_id, path, scope)


def _requeue() -> None:
    from airflow_provider_sharedstream.supervisor.requeue_watch import requeue_for_ever

    requeue_for_ever()


def _recall(folder: Path) -> None:
    from airflow_provider_sharedstream.supervisor.recall import answer_for_ever

    answer_for_ever(folder)


class TriggererListener:
    """Airflow's listener."""

    @hookimpl
    def on_starting(self, component: Any) -> None:
        """Note a component's job; a worker's start has none."""
        if hasattr(type(component), "job_type"):
            _AtFork(component)


class SharedStreamPlugin(AirflowPlugin):
    """Airflow's plugin."""

    name = "sharedstream"
    listeners = [TriggererListener()]
    macros = [messages]

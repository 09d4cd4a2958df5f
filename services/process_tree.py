"""What belongs to a process, and what ends it when we can't."""

from __future__ import annotations

import os
import subprocess
from typing import IO

import psutil


def session(leader: int) -> set[psutil.Process]:
    members = set()
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == leader:
                members.add(psutil.Process(pid))
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members


def descendants(parent: int) -> set[psutil.Process]:
    try:
        return set(psutil.Process(parent).children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def alive(process: psutil.Process) -> bool:
    # is_running() compares the start time too, so a process that got the id later doesn't count.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def guard(group: int) -> subprocess.Popen[bytes]:
    """Ends the group and the session when this program dies in a way that runs no Python code, KILL -9 included."""
    # The pipe closes with this program; a word on it dismisses the guard.
    script = f'read word; [ "$word" = dismissed ] || {{ kill -s KILL -- -{group}; pkill -KILL -s {group}; }}'
    return subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def dismiss(watcher: subprocess.Popen[bytes]) -> None:
    pipe: IO[bytes] | None = watcher.stdin
    assert pipe is not None
    try:
        pipe.write(b"dismissed\n")
        pipe.close()
    except BrokenPipeError:
        pass
    watcher.wait()

"""The folder that a triggerer's supervisor and its runner share: the roster, questions and answers."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

_lock = threading.Lock()
_ended = False


def make(folder: Path) -> bool:
    """Make the folder where it isn't there; return whether it may be used.

    A triggerer runs for months, and its folder is a temporary one, which somebody may tidy away. Once the triggerer
    ends, there is none.
    """
    with _lock:
        if not _ended:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not _ended


def remove(folder: Path, pid: int) -> None:
    """Remove the folder for good, if this is process ``pid``: what it forks inherits its exit handlers."""
    global _ended
    if os.getpid() == pid:
        with _lock:
            _ended = True
            shutil.rmtree(folder, ignore_errors=True)

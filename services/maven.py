"""Programs out of Maven's repository."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from services.process import ServiceUnavailable


def installed(folder: Path, what: str, goal: list[str], unpack: Callable[[Path], None] = lambda part: None) -> Path:
    """Return `folder`, made where it is missing, whole or not at all.

    :param what: for messages.
    :param goal: of Maven, with its properties; it is told where to put what it fetches.
    :param unpack: is given the folder with what was fetched, and leaves there what is wanted.
    :raises ServiceUnavailable: there is no Maven, or nothing to fetch from; says what to install.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            _fetch(part, what, goal)
            unpack(part)
            part.rename(folder)
    return folder


def _fetch(part: Path, what: str, goal: list[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise ServiceUnavailable("there is no mvn in PATH. On Debian or Ubuntu: apt-get install maven")
    done = subprocess.run(
        [maven, "--batch-mode", "--quiet", *goal, f"-DoutputDirectory={part}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=part.parent,
    )
    if done.returncode:
        raise ServiceUnavailable(f"Maven could not fetch {what}:\n{done.stdout[-2000:]}")

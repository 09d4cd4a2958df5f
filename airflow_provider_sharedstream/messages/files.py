"""From a message about a file to the file, in a task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from airflow_provider_sharedstream.stream.message import Message

LONGEST_LOOK_SECONDS = 1.0


def archived_file(message: Message, *, timeout_seconds: float = 300.0) -> Path:
    """Return the path of a message's file in ``archive_directory``, once it is there.

    A Dag starts when its watcher's event is stored, and the file is moved when the events of all its watchers are:
    mostly within two seconds, but a task may be quicker.

    :param message: of a ``DirectoryFileDeleteTrigger`` with ``archive_directory``.
    :param timeout_seconds: how long to wait. Default: 300, after which Airflow gives up on a watcher
        (``[triggerer] shared_stream_ack_timeout``).
    :raises ValueError: the message has no ``archived_path``.
    :raises FileNotFoundError: the file isn't there by then: it was changed or removed by others before it was moved,
        or this worker doesn't see the directory.
    """
    given = None
    for about in (message.attributes, message.body):
        if isinstance(about, Mapping):
            given = given or about.get("archived_path")
    if not isinstance(given, str):
        raise ValueError(f"{message.id}: the message has no archived_path; its trigger needs archive_directory")
    path = Path(given)
    deadline = time.monotonic() + timeout_seconds
    look_seconds = 0.05
    while not path.exists():
        left = deadline - time.monotonic()
        if left <= 0:
            raise FileNotFoundError(
                f"{given} is not there after {timeout_seconds:g} s: the file was changed or removed before it could be "
                "moved there, or this worker doesn't see the directory"
            )
        time.sleep(min(look_seconds, left))
        look_seconds = min(LONGEST_LOOK_SECONDS, look_seconds * 2)
    return path

"""What the events of a watcher's assets hold already, asked of the triggerer's supervisor.

The process that runs triggers has no access to the database. The supervisor that started it has, and answers
(``supervisor/recall.py``): a question is a file beside the roster, and so is the answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.roster import PATH_VARIABLE

log = logging.getLogger(__name__)

STAMPS = "dedupe_keys"
"""The field of a payload that holds what its messages are recognized by."""

QUESTION, ANSWER = ".question", ".answer"
LOOK_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 30.0
"""Airflow gives a watcher 300 s for a batch, unless it is told otherwise."""


class Question(NamedTuple):
    """What is to be recalled.

    :param trigger_id: whose assets it is about.
    :param within_seconds: older events are left out.
    :param most: most stamps; the oldest are left out first.
    """

    trigger_id: int
    within_seconds: float
    most: int


def write(path: Path, content: object) -> None:
    """Write a file that is there at once or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content), encoding="utf-8")
    os.replace(new, path)


async def recall(question: Question) -> Mapping[str, float]:
    """Return the stamps of stored events, with how many seconds ago they were stored.

    :raises SourceUnavailable: there is no answer; it is to be asked again.
    """
    roster = os.environ.get(PATH_VARIABLE)
    if not roster:
        log.warning("dedupe_durable: there is no supervisor to ask here; repeats are told from memory alone")
        return {}
    asked = Path(roster).with_name(f"recall-{secrets.token_hex(8)}{QUESTION}")
    answered = asked.with_suffix(ANSWER)
    try:
        write(asked, question)
        deadline = time.monotonic() + LONGEST_WAIT_SECONDS
        while time.monotonic() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            if answered.exists():
                found = json.loads(answered.read_text(encoding="utf-8"))
                if found["off"]:
                    log.error("dedupe_durable: repeats are told from memory alone: %s", found["off"])
                return {str(key): float(age) for key, age in found["ages"].items()}
    except (OSError, ValueError) as error:
        raise SourceUnavailable(f"dedupe_durable: what is stored can't be asked for: {error}") from error
    finally:
        for path in (asked, answered):
            path.unlink(missing_ok=True)
    raise SourceUnavailable("dedupe_durable: the triggerer's supervisor doesn't say what is stored; its log says why")

"""The thread that tells watchers what the events of their assets hold already.

Events that a watcher with ``dedupe_durable`` makes are stamped with what tells their messages. So the stored events are
the memory: what is in it and what is stored can't differ, whatever is killed in between.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_sharedstream.stream.recall import ANSWER, QUESTION, STAMPS, Question, write
from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.supervisor import shared_folder, tables

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
LONGEST_BACKOFF_SECONDS = 10.0
EVENTS_AT_ONCE = 500


def answer_for_ever(folder: Path) -> None:
    """Answer the questions in ``folder`` until the process ends. Never raises."""
    backoff = Backoff(1.0, LONGEST_BACKOFF_SECONDS)
    while True:
        pause = LOOK_SECONDS
        try:
            shared_folder.make(folder)  # where `cohort` is off, nobody else makes it again
            for path in folder.glob(f"*{QUESTION}"):
                _answer(path)
            backoff.reset()
        except Exception as error:
            pause = backoff.next_seconds()
            if not tables.is_outage(error):
                log.exception("What is stored can't be told, and is tried again in %.0f s", pause)
            elif backoff.failures == 1:
                log.warning("What is stored can't be told at present: %s", error)
        time.sleep(pause)


def _answer(path: Path) -> None:
    from airflow.utils.session import create_session

    try:
        question = Question(*json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return  # whoever asked waits no longer
    except (ValueError, TypeError) as error:
        log.error("%s is no question: %s", path, error)
        path.unlink(missing_ok=True)
        return
    off, ages = None, {}
    try:
        tables.check()
        with create_session() as session:
            ages = stored(session, question)
    except Exception as error:
        if not isinstance(error, tables.TablesChanged) and not tables.is_change(error):
            raise
        off = f"it was made for Airflow {tables.CHECKED}, and this one is another: {error}"
    if path.exists():
        write(path.with_suffix(ANSWER), {"off": off, "ages": ages})
        path.unlink(missing_ok=True)


def stored(session: Session, question: Question) -> dict[str, float]:
    """Return the stamps of what all assets of a trigger have, with the age of the newest event that has them."""
    from airflow.models.asset import AssetWatcherModel
    from sqlalchemy import select

    assets = session.scalars(
        select(AssetWatcherModel.asset_id).where(AssetWatcherModel.trigger_id == question.trigger_id).distinct()
    ).all()
    by_asset = [_of_asset(session, asset_id, question) for asset_id in assets]
    if not by_asset:
        return {}
    # An asset that was added to the trigger lately has not had what the others have.
    return {key: max(ages[key] for ages in by_asset) for key in set.intersection(*(set(ages) for ages in by_asset))}


def _of_asset(session: Session, asset_id: int, question: Question) -> dict[str, float]:
    from airflow.models.asset import AssetEvent
    from sqlalchemy import select

    now = datetime.now(timezone.utc)
    stamps = AssetEvent.extra[("payload", STAMPS)]
    query = (
        select(AssetEvent.timestamp, stamps)
        .where(
            AssetEvent.asset_id == asset_id,
            AssetEvent.timestamp > now - timedelta(seconds=question.within_seconds),
            AssetEvent.extra["from_trigger"].as_boolean().is_(True),
        )
        .order_by(AssetEvent.timestamp.desc())
        .execution_options(yield_per=EVENTS_AT_ONCE)
    )
    ages: dict[str, float] = {}
    for timestamp, keys in session.execute(query):
        for key in keys if isinstance(keys, list) else ():
            if isinstance(key, str):
                ages.setdefault(key, (now - timestamp).total_seconds())
        if len(ages) >= question.most:
            break
    return ages

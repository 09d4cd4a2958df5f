"""The thread's loop: read who watches, write the roster, bring together what belongs together.

Nothing that happens here may reach the triggerer: the database may be away, restart, or hold what nobody has foreseen.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_sharedstream import options
from airflow_provider_sharedstream.stream.reconnect import Backoff
from airflow_provider_sharedstream.stream.roster import Roster
from airflow_provider_sharedstream.supervisor import dag_tables, shared_folder, tables
from airflow_provider_sharedstream.supervisor.identity import identify
from airflow_provider_sharedstream.supervisor.membership import Member, Membership
from airflow_provider_sharedstream.supervisor.ownership import Move, Place, Post, by_place, gather, owner_of, spread
from airflow_provider_sharedstream.supervisor.scope import Scope
from airflow_provider_sharedstream.supervisor.tables import Link, WatcherRow
from airflow_provider_sharedstream.triggers.mark import StreamIdentity

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

EVERY_SECONDS = 1.0
IDLE_SECONDS = 5.0
"""Where no trigger in the whole of Airflow is ours."""
DAGS_EVERY_SECONDS = 60.0
"""How often it is read which Dags are scheduled on the assets; besides when there is a new asset."""
NO_DAGS: frozenset[str] = frozenset()

LEAST_GRACE_SECONDS = 60.0
"""A busy Dag processor parses a file far more slowly than its interval says."""

LONGEST_OUTAGE_SECONDS = 10.0
LONGEST_SURPRISE_SECONDS = 60.0


def write_roster(path: Path, roster: Roster) -> None:
    """Replace the file at once: whoever reads it sees the old one or the new one."""
    if not shared_folder.make(path.parent):
        return
    new = path.with_suffix(".new")
    new.write_text(roster.to_json(), encoding="utf-8")
    os.replace(new, path)


class CohortWatch:
    """Keeps the roster and the ownership, as one triggerer's supervisor.

    :param job_id: the triggerer's job.
    :param path: where the roster goes.
    :param departure_grace_seconds: how long a departed watcher's successor is waited for.
    :param dead_after_seconds: a triggerer whose last heartbeat is older is dead, as Airflow has it.
    :param scope: which triggers this triggerer takes; None: it is not known, and it takes none that it has none like.
    """

    def __init__(
        self,
        job_id: int,
        path: Path,
        *,
        departure_grace_seconds: float,
        dead_after_seconds: float,
        scope: Scope | None,
    ) -> None:
        self.path = path
        self._job_id = job_id
        self._dead_after_seconds = dead_after_seconds
        self._scope = scope
        self._membership = Membership(job_id, departure_grace_seconds)
        self._identities: dict[int, StreamIdentity | None] = {}
        self._dags: dict[int, frozenset[str]] = {}
        """By asset. They are read while its watchers are there: when one has gone, Airflow may have forgotten them."""
        self._dags_read_at = float("-inf")
        self._began = False
        self.spread_from = time.monotonic() + dead_after_seconds
        """When it begins to take sources from others: one that crashes again and again shall not draw them to itself
        each time it lives.
        """

    def step(self, session: Session) -> float:
        """Do it once, in a transaction of its own; return how long to wait until the next time."""
        read_at = time.monotonic()
        rows = tables.read_watchers(session, self._dead_after_seconds)
        self._identify(session, rows)
        ours = [(row, identity) for row in rows if (identity := self._identities[row.trigger_id]) is not None]
        self._keep(session, ours, read_at)
        return EVERY_SECONDS if ours else IDLE_SECONDS

    def _keep(self, session: Session, ours: Sequence[tuple[WatcherRow, StreamIdentity]], read_at: float) -> None:
        places = by_place(_post(row, identity) for row, identity in ours)
        owners = {place: owner_of(posts) for place, posts in places.items()}

        declared = [] if self._began else self._declared_or_none(session)
        self._membership.expect(declared, read_at)
        self._began = True
        watched = {link.asset_id for row, _ in ours for link in row.links}
        self._read_dags(session, watched | {link.asset_id for member in declared for link in member.links})

        def watched_assets(asset_ids: Iterable[int]) -> Mapping[int, datetime]:
            return dag_tables.read_watched_assets(
                session, {number: self._dags.get(number, NO_DAGS) for number in asset_ids}
            )

        members = (
            Member(row.trigger_id, identity.stream, identity.source, owners[_place(row, identity)], row.links, row.name)
            for row, identity in ours
        )
        write_roster(self.path, self._membership.update(members, read_at, watched_assets))
        self._bring_together(session, places)

    def _identify(self, session: Session, rows: Iterable[WatcherRow]) -> None:
        """Find out the streams of triggers not seen before; what a row holds never changes."""
        new = {row.trigger_id: row for row in rows if row.trigger_id not in self._identities}
        self._identities = {row.trigger_id: self._identities.get(row.trigger_id) for row in rows}
        if new:
            arguments = tables.read_arguments(session, new)
            for number, row in new.items():
                if number in arguments:
                    self._identities[number] = identify(row.name, row.classpath, arguments[number])
                else:
                    # Deleted between the two queries.
                    self._identities[number] = None

    def _declared_or_none(self, session: Session) -> list[Member]:
        try:
            return self._declared(session)
        except Exception as error:
            if tables.is_outage(error):
                raise
            # It is a precaution for one moment. The rest must not depend on what the Dags of strangers look like.
            session.rollback()
            log.exception("What watchers the stored Dags declare can't be read, and is not waited for")
            return []

    def _declared(self, session: Session) -> list[Member]:
        """Return the watchers of ours that Dags declare."""
        members: list[Member] = []
        for asset_id, one in dag_tables.read_declared(session):
            name = f"{one.asset}/{one.watcher}"
            if (identity := identify(name, one.classpath, tables.decode_arguments(one.arguments))) is not None:
                links = frozenset({Link(asset_id, one.watcher)})
                members.append(Member(-len(members) - 1, *identity, None, links, name))
        return members

    def _read_dags(self, session: Session, asset_ids: set[int]) -> None:
        now = time.monotonic()
        if now - self._dags_read_at >= DAGS_EVERY_SECONDS or not self._dags.keys() >= asset_ids:
            self._dags.update(dict.fromkeys(asset_ids - self._dags.keys(), NO_DAGS))
            self._dags.update(dag_tables.read_dags(session, asset_ids))
            self._dags_read_at = now

    def _bring_together(self, session: Session, places: Mapping[Place, list[Post]]) -> None:
        moves = gather(places)
        if not moves and time.monotonic() >= self.spread_from:
            mine = {place: posts for place, posts in places.items() if self._takes(place, posts)}
            claim = spread(mine, self._job_id)
            moves = [] if claim is None else [claim]
        for move in moves:
            make_move(session, move)

    def _takes(self, place: Place, posts: Iterable[Post]) -> bool:
        if self._scope is not None:
            return self._scope.takes(place.team, place.queue)
        return any(post.triggerer_id == self._job_id for post in posts)


def make_move(session: Session, move: Move) -> bool:
    """Assign triggers in a transaction of its own, if they still are as they were read; return whether they were."""
    session.commit()
    unchanged = tables.lock_owners(session, move.as_read) == move.as_read
    if unchanged:
        tables.assign(session, move.trigger_ids, move.to)
        log.info("Triggers %s are moved to triggerer %d", sorted(move.trigger_ids), move.to)
    session.commit()
    return unchanged


def _place(row: WatcherRow, identity: StreamIdentity) -> Place:
    return Place(row.team, row.queue, identity.source)


def _post(row: WatcherRow, identity: StreamIdentity) -> Post:
    return Post(row.trigger_id, _place(row, identity), row.triggerer_id, row.alive)


def watch(job_id: int, path: Path, scope: Scope | None) -> None:
    """Watch until the process ends, or where it can't or shall not be done. Never raises.

    :param job_id: the triggerer's job.
    :param path: where the roster goes.
    :param scope: which triggers the triggerer takes; None: it isn't known.
    """
    if not options.switch("cohort", True):
        turn_off(job_id, path, "[sharedstream] cohort is off")
        return
    outage, surprise = Backoff(1.0, LONGEST_OUTAGE_SECONDS), Backoff(1.0, LONGEST_SURPRISE_SECONDS)
    keeper: CohortWatch | None = None
    worked = False
    while True:
        began = time.monotonic()
        try:
            if keeper is None:
                keeper = _cohort_watch(job_id, path, scope)
            pause = _step(keeper)
            if outage.failures:
                log.info("Who belongs to each stream can be read again")
            outage.reset()
            surprise.reset()
            worked = True
        except Exception as error:
            if (change := _change(error, worked)) is not None:
                turn_off(job_id, path, f"this Airflow is not one of those it was made for ({tables.CHECKED}): {change}")
                return
            if tables.is_outage(error):
                if not outage.failures:
                    log.warning("Who belongs to each stream can't be read at present, and is tried again: %s", error)
                pause = outage.next_seconds()
            else:
                pause = surprise.next_seconds()
                log.exception("Who belongs to each stream can't be read, and is tried again in %.0f s", pause)
        time.sleep(max(0.1, pause - (time.monotonic() - began)))


def turn_off(job_id: int, path: Path, why: str) -> None:
    """Let streams know that there will be no roster, and say so."""
    log.error(
        "The watchers of one source are not kept together: %s. With more than one triggerer, messages can be lost for "
        "watchers that run apart.",
        why,
    )
    try:
        write_roster(path, Roster(job_id, time.monotonic(), off=why))
    except OSError as error:
        log.error("%s can't be written: %s", path, error)


def _step(keeper: CohortWatch) -> float:
    from airflow.utils.session import create_session

    with create_session() as session:
        return keeper.step(session)


def _change(error: Exception, worked: bool) -> str | None:
    """Return what of this Airflow is not what it is taken for, if that is why something failed.

    :param worked: whether it was as expected before.
    """
    if isinstance(error, tables.TablesChanged):
        return str(error)
    if tables.is_refusal(error):
        try:
            _check_database()
        except tables.TablesChanged as change:
            return str(change)
        except Exception as other:
            log.debug("Whether the tables have changed can't be asked: %s", other)
    return str(error) if not worked and tables.is_change(error) else None


def _check_database() -> None:
    from airflow.utils.session import create_session

    with create_session() as session:
        tables.check_database(session)


def _cohort_watch(job_id: int, path: Path, scope: Scope | None) -> CohortWatch:
    from airflow.configuration import conf

    tables.check()
    two_parses = 2.0 * conf.getfloat("dag_processor", "min_file_process_interval", fallback=30.0)
    return CohortWatch(
        job_id,
        path,
        departure_grace_seconds=options.seconds("departure_grace_seconds", max(LEAST_GRACE_SECONDS, two_parses)),
        dead_after_seconds=conf.getfloat("triggerer", "triggerer_health_check_threshold", fallback=30.0),
        scope=scope,
    )

"""Which triggerer each source belongs to. Pure: rows in, moves out.

Every triggerer decides, once a second, from the same rows. They can't fight:

- *Gathering.* A source belongs to the live triggerer that has the oldest of its triggers that a live one has. That is
  a function of the rows alone, and gathering the others there does not change what it says: whoever does it, and
  however many do, they do the same.
- *Spreading.* Only a triggerer that has fewer sources takes one, for itself, one at a time, and only from one that has
  at least two more. Each such move makes the counts more equal (the sum of their squares falls), so there is no way
  back, and there is an end.
- Either is done under locks on the rows concerned, and only if they still are as they were read. What a second one
  finds locked or changed it leaves, and looks again a second later.

A source is never moved without need: for gathering, or because the counts differ by two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Place(NamedTuple):
    """What belongs together.

    :param team: Airflow's team; the same name may mean another source to another team.
    :param queue: the triggerer queue.
    :param source: the source.
    """

    team: str | None
    queue: str | None
    source: str


class Post(NamedTuple):
    """A trigger of ours, as ownership sees it.

    :param trigger_id: the row.
    :param place: what it belongs to.
    :param triggerer_id: whom it is assigned to.
    :param alive: whether that one lives.
    """

    trigger_id: int
    place: Place
    triggerer_id: int | None
    alive: bool


class Move(NamedTuple):
    """Triggers to assign.

    :param trigger_ids: these,
    :param to: to this triggerer,
    :param as_read: if these rows still belong to whom they did.
    """

    trigger_ids: frozenset[int]
    to: int
    as_read: Mapping[int, int | None]


def by_place(posts: Iterable[Post]) -> dict[Place, list[Post]]:
    """Sort by what belongs together, the oldest first."""
    places: dict[Place, list[Post]] = defaultdict(list)
    for post in sorted(posts):
        places[post.place].append(post)
    return dict(places)


def owner_of(posts: Sequence[Post]) -> int | None:
    """Return whom a source belongs to: the live triggerer of its oldest trigger; None: Airflow has yet to assign one.

    :param posts: the source's, the oldest first.
    """
    return next((post.triggerer_id for post in posts if post.alive), None)


def gather(places: Mapping[Place, Sequence[Post]]) -> list[Move]:
    """Return the moves that bring the triggers of each source together.

    Triggers of a dead triggerer are moved too: Airflow would give them to anybody.
    """
    moves = []
    for posts in places.values():
        owner = owner_of(posts)
        strays = frozenset(post.trigger_id for post in posts if post.triggerer_id != owner)
        if owner is not None and strays:
            moves.append(Move(strays, owner, {post.trigger_id: post.triggerer_id for post in posts}))
    return moves


def spread(places: Mapping[Place, Sequence[Post]], me: int) -> Move | None:
    """Return the move that brings one source to ``me``, if I have too few.

    :param places: those that I may run.
    """
    if any(post.triggerer_id == me and not post.alive for posts in places.values() for post in posts):
        # My heartbeat is late: to the others I am dead, and what I have would not be counted.
        return None
    owned: dict[int, list[Place]] = {me: []}
    for place, posts in places.items():
        if (owner := owner_of(posts)) is not None:
            owned.setdefault(owner, []).append(place)
    richest = max(owned, key=lambda owner: (len(owned[owner]), -owner))
    if len(owned[richest]) < len(owned[me]) + 2:
        return None
    # The newest source: it has been there for the shortest time.
    place = max(owned[richest], key=lambda place: places[place][0].trigger_id)
    # All that the other one has is locked, so that its count is what it was when this one counted.
    as_read = {post.trigger_id: post.triggerer_id for place in owned[richest] for post in places[place]}
    return Move(frozenset(post.trigger_id for post in places[place]), me, as_read)

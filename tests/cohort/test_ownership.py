"""Which triggerer a source belongs to, and that several that decide at once come to rest."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_sharedstream.supervisor.ownership import Move, Place, Post, by_place, gather, owner_of, spread

A = Place(None, None, "a")
B = Place(None, None, "b")


def post(number: int, owner: int | None, *, place: Place = A, alive: bool = True) -> Post:
    return Post(number, place, owner, alive and owner is not None)


def test_a_source_belongs_to_who_has_its_oldest_trigger() -> None:
    posts = by_place([post(3, 7), post(1, 8), post(2, 7)])[A]
    assert owner_of(posts) == 8
    assert gather({A: posts}) == [Move(frozenset({2, 3}), 8, {1: 8, 2: 7, 3: 7})]


def test_the_dead_own_nothing_and_theirs_is_gathered_too() -> None:
    posts = by_place([post(1, 7, alive=False), post(2, 8), post(3, None)])[A]
    assert owner_of(posts) == 8
    assert [move.trigger_ids for move in gather({A: posts})] == [{1, 3}]


def test_where_nobody_lives_airflow_assigns() -> None:
    posts = by_place([post(1, None), post(2, 7, alive=False)])[A]
    assert owner_of(posts) is None
    assert gather({A: posts}) == []


def test_what_is_together_stays() -> None:
    assert gather(by_place([post(1, 7), post(2, 7), post(3, 8, place=B)])) == []


def test_teams_and_queues_are_not_mixed() -> None:
    mine, theirs = Place("red", None, "a"), Place("blue", None, "a")
    assert gather(by_place([post(1, 7, place=mine), post(2, 8, place=theirs)])) == []


def test_one_is_taken_from_who_has_two_more() -> None:
    places = by_place([post(n, 7, place=Place(None, None, str(n))) for n in range(3)])
    move = spread(places, 9)
    assert move is not None
    assert move.trigger_ids == {2}, "the newest"
    assert move.to == 9
    assert move.as_read == {0: 7, 1: 7, 2: 7}, "all that the other one has"
    assert spread(places, 7) is None, "nobody takes from itself"


def test_a_difference_of_one_is_even() -> None:
    places = by_place([post(1, 7), post(2, 8, place=B), post(3, 8, place=Place(None, None, "c"))])
    assert spread(places, 7) is None


def test_one_whose_heartbeat_is_late_takes_nothing() -> None:
    places = by_place([post(n, 7, place=Place(None, None, str(n))) for n in range(3)])
    assert spread({**places, A: [post(9, 8, alive=False)]}, 8) is None
    assert spread({**places, A: [post(9, 8)]}, 8) is not None


def test_nothing_to_spread() -> None:
    assert spread({}, 7) is None


class Database:
    """Rows, and moves under locks: a move is made whole, or not at all when its rows aren't as they were read."""

    def __init__(self, owners: dict[int, int | None], sources: dict[int, str], alive: set[int]) -> None:
        self.owners = owners
        self.sources = sources
        self.alive = alive
        self.moves = 0

    def read(self) -> dict[Place, list[Post]]:
        return by_place(
            Post(number, Place(None, None, self.sources[number]), owner, owner in self.alive)
            for number, owner in self.owners.items()
        )

    def make(self, move: Move) -> None:
        if {number: self.owners[number] for number in move.as_read} == dict(move.as_read):
            self.owners.update(dict.fromkeys(move.trigger_ids, move.to))
            self.moves += 1

    def counts(self) -> Counter[int]:
        owned = Counter(dict.fromkeys(self.alive, 0))
        owned.update(owner for posts in self.read().values() if (owner := owner_of(posts)) is not None)
        return owned

    def at_rest(self) -> bool:
        counts = self.counts()
        return not gather(self.read()) and max(counts.values()) - min(counts.values()) <= 1


@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 12), st.integers(1, 4))
def test_several_that_decide_at_once_come_to_rest(
    chance: random.Random, triggerers: int, sources: int, watchers: int
) -> None:
    """Each decides on what it read some time ago, in any order; Airflow assigns what nobody alive has."""
    alive = set(range(1, triggerers + 1))
    numbers = range(sources * watchers)
    database = Database(
        {number: chance.choice([None, 99, *alive]) for number in numbers},
        {number: str(chance.randrange(sources)) for number in numbers},
        alive,
    )
    rounds = 0
    while not database.at_rest() or rounds == 0:
        rounds += 1
        assert rounds < 200, f"no rest: {database.owners}"
        for number, owner in database.owners.items():
            if owner not in alive and chance.random() < 0.5:
                database.owners[number] = chance.choice(sorted(alive))
        decided: list[Move] = []
        for me in chance.sample(sorted(alive), len(alive)):
            places = database.read()
            moves = gather(places) or [move for move in [spread(places, me)] if move is not None]
            decided += moves
            if chance.random() < 0.5:
                # This one is quick; the others' decisions are made of what was there before.
                for move in decided:
                    database.make(move)
                decided = []
        for move in decided:
            database.make(move)
    before = database.moves
    for me in alive:
        places = database.read()
        assert gather(places) == []
        assert spread(places, me) is None
    assert database.moves == before


def test_the_fewest_moves_that_make_it_even() -> None:
    database = Database(dict.fromkeys(range(12), 1), {number: str(number) for number in range(12)}, {1, 2, 3})
    while not database.at_rest():
        for me in (1, 2, 3):
            if (move := spread(database.read(), me)) is not None:
                database.make(move)
    assert sorted(database.counts().values()) == [4, 4, 4]
    assert database.moves == 8

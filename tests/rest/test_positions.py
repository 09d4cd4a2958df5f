"""Positions: what is stored says the same when it is read again, wherever the writing was broken off."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_sharedstream.brokers.rest.answers import Item
from airflow_provider_sharedstream.brokers.rest.attendance import Attendance
from airflow_provider_sharedstream.brokers.rest.offers import Checkpoint, Offers
from airflow_provider_sharedstream.brokers.rest.positions import SEGMENT, Positions, PositionUnreadable
from airflow_provider_sharedstream.brokers.rest.store import AssetGone, StateStoreTrouble
from airflow_provider_sharedstream.brokers.rest.tracks import Tracks
from airflow_provider_sharedstream.brokers.rest.watcher import RestWatcher


class Store:
    """A store that may break off before a write."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Any] = {}
        self.writes_left: int | None = None
        self.gone = False
        self.while_writing: Callable[[str], None] = lambda key: None

    async def read(self, asset: str, key: str) -> Any:
        return copy.deepcopy(self.values.get((asset, key)))

    async def write(self, asset: str, key: str, value: Any) -> None:
        if self.gone:
            raise AssetGone(asset)
        if self.writes_left is not None:
            if self.writes_left == 0:
                raise StateStoreTrouble(asset, ConnectionError("broken off"))
            self.writes_left -= 1
        _, _, slot = key.partition(".")
        referred_to = self.values.get((asset, "k"), {"slots": ()})["slots"]
        assert not slot or int(slot) not in referred_to, "the stored head refers to it"
        written = copy.deepcopy(value)
        self.while_writing(key)
        self.values[(asset, key)] = written


def positions(store: Store | None = None, most: int = 2000, cursor_path: str | None = "at") -> Positions:
    made = Positions("k", "an endpoint", most, cursor_path)
    made.store = store
    return made


def key(number: int) -> str:
    return f"{number:012}"


async def test_it_is_read_as_it_was_written() -> None:
    store = Store()
    written = positions(store)
    assert not await written.load("a")
    for number in range(2500):
        written.add("a", key(number))
    written.of("a").move_to("c7")
    written.of("a").begin()
    written.of("a").change_to("f", 3)
    await written.write()
    read = positions(store)
    assert await read.load("a")
    assert all(read.knows("a", key(number)) for number in range(2500))
    assert not read.knows("b", key(1))
    position = read.of("a")
    assert (position.cursor, position.begun, position.fingerprint, position.changes) == ("c7", True, "f", 3)
    other = positions(store, cursor_path="elsewhere")
    await other.load("a")
    assert other.of("a").cursor is None, "a cursor that came from elsewhere"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 1500), st.integers(0, 4)), min_size=1, max_size=10))
def test_what_is_listed_is_known_after_any_crash(rounds: list[tuple[int, int]]) -> None:
    """Each round lists the 300 oldest items and the 1,700 newest, among them new ones; its writing may be broken
    off.
    """

    async def run() -> None:
        store = Store()
        current, newest, safe = positions(store), 0, 0

        def listed(up_to: int) -> list[int]:
            return [number for number in range(up_to) if number < 300 or number >= newest - 1700]

        await current.load("a")
        for new, writes in rounds:
            newest += new
            unknowing = current.unknowing(["a"])
            for number in listed(newest):
                if unknowing(key(number)):
                    current.add("a", key(number))
            current.trim({key(number) for number in listed(newest)})
            assert len(current._known) <= 2000
            store.writes_left = writes if writes < 4 else None
            try:
                await current.write()
                safe = newest
            except StateStoreTrouble:
                # Killed, and started again.
                current = positions(store)
                store.writes_left = None
                assert await current.load("a")
            reread = positions(store)
            assert await reread.load("a")
            forgotten = [number for number in listed(safe) if not reread.knows("a", key(number))]
            assert not forgotten
            # The segments that are stored, as many that replace them, one that is being closed, and the head.
            assert len(store.values) <= 2 * (2000 // SEGMENT + 1) + 2

    asyncio.run(run())


async def test_a_burst_overwrites_nothing_that_is_referred_to() -> None:
    store = Store()
    current = positions(store)
    await current.load("a")
    for end in (3000, 6500, 13_000):
        for number in range(end):
            current.add("a", key(number))
        await current.write()
        reread = positions(store)
        await reread.load("a")
        assert all(reread.knows("a", key(number)) for number in range(end))


@pytest.mark.parametrize(
    "odd", [5, "text", [], {}, {"version": 2, "slots": [], "known": ""}, {"version": 1, "slots": [0], "known": ""}]
)
async def test_what_cannot_be_understood_is_not_taken_for_nothing(odd: Any) -> None:
    store = Store()
    store.values[("a", "k")] = odd
    with pytest.raises(PositionUnreadable, match="delete it to start over"):
        await positions(store).load("a")


async def test_a_write_that_fails_is_made_up_for() -> None:
    store = Store()
    one = positions(store)
    await one.load("a")
    for number in range(1500):
        one.add("a", key(number))
    store.writes_left = 1
    with pytest.raises(StateStoreTrouble):
        await one.write()
    store.writes_left = None
    await one.write()
    again = positions(store)
    await again.load("a")
    assert all(again.knows("a", key(number)) for number in range(1500))


async def test_what_airflow_has_deleted_is_written_again() -> None:
    store = Store()
    one = positions(store)
    await one.load("a")
    for number in range(2500):
        one.add("a", key(number))
    await one.write()
    # No Dag declares the asset any more, and the scheduler deletes what is stored of it; then one does again.
    store.gone = True
    store.values.clear()
    one.add("a", key(2500))
    await one.write()
    store.gone = False
    one.add("a", key(2501))
    await one.write()
    again = positions(store)
    assert await again.load("a")
    assert all(again.knows("a", key(number)) for number in range(2502))


async def test_a_position_that_was_deleted_begins_anew() -> None:
    store = Store()
    one = positions(store)
    for asset in ("a", "b"):
        await one.load(asset)
        for number in range(1500):
            one.add(asset, key(number))
    one.of("a").begin()
    await one.write()
    for place in [place for place in store.values if place[0] == "a"]:
        del store.values[place]
    assert not await one.load("a"), "what is in memory is not what is stored"
    assert not any(one.knows("a", key(number)) for number in range(1500))
    assert all(one.knows("b", key(number)) for number in range(1500))
    one.add("a", key(7))
    await one.write()
    again = positions(store)
    assert await again.load("a")
    assert [number for number in range(1500) if again.knows("a", key(number))] == [7]


async def test_segments_that_are_filled_during_a_write_overwrite_nothing_that_it_refers_to() -> None:
    store = Store()
    one = positions(store, most=100)
    await one.load("a")
    numbers = itertools.count()

    def fill(segments: int) -> None:
        for _ in range(segments):
            one.trim()
            for number in itertools.islice(numbers, SEGMENT):
                one.add("a", key(number))

    def once(written: str) -> None:
        if written == "k":
            store.while_writing = lambda key: None
            fill(2)

    fill(1)
    await one.write()
    fill(1)
    store.while_writing = once
    await one.write()
    await one.write()
    again = positions(store, most=100)
    await again.load("a")
    assert all(again.knows("a", key(number)) for number in range(next(numbers) - 100, next(numbers) - 1))


async def test_so_many_that_it_takes_too_long_begin_bit_by_bit() -> None:
    watchers = [RestWatcher(number, (f"asset {number}",)) for number in range(9)]

    class Slow(Store):
        async def read(self, asset: str, key: str) -> Any:
            reads.append(asset)
            if len(reads) % 4 == 0:
                await asyncio.Event().wait()
            return await super().read(asset, key)

    reads: list[str] = []
    made = positions(Slow())
    attendance = Attendance("an endpoint", made, Tracks(made), lambda: frozenset(watchers))
    for left in (6, 3, 0):
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(attendance.welcome(), 0.1)
        assert len(attendance.newcomers()) == left


def offers() -> Offers:
    return Offers(lambda: 0.0)


def test_whoever_was_not_shown_an_item_has_not_had_it() -> None:
    one, other, of_both = RestWatcher(1, ("a",)), RestWatcher(2, ("b",)), RestWatcher(3, ("b",))
    there = offers()
    checkpoint = Checkpoint(["a", "b", "c"])
    there.add(Item(key(1), "1", b"1"), ["a", "b", "c"], checkpoint)
    (offer,) = there.take(10, [one, other, of_both])
    assert offer.show_to(one)
    assert offer.show_to(other)
    # The third left before it was shown: its asset has another watcher that has looked, and still it hasn't had it.
    assert offer.missed_by() == {"b", "c"}
    assert not offer.show_to(RestWatcher(1, ("a",), "new")), "somebody else"
    there.renew(offer, {"b"})
    there.close(offer)
    assert checkpoint.open == 1, "what is offered again holds the place still"
    (again,) = there.take(10, [one, other, of_both])
    assert again.watchers == {other, of_both}
    there.close(again)
    assert checkpoint.open == 0
    assert not len(there)


def test_an_item_that_is_listed_again_while_it_is_with_the_watchers() -> None:
    one, newcomer = RestWatcher(1, ("a",)), RestWatcher(2, ("b",))
    there = offers()
    first, second = Checkpoint(["a"]), Checkpoint(["a", "b"])
    item = Item(key(1), "1", b"1")
    there.add(item, ["a"], first)
    (offer,) = there.take(10, [one, newcomer])
    there.add(item, ["a", "b"], second)
    (other,) = there.take(10, [one, newcomer])
    assert (offer.leads, other.leads) == (frozenset("a"), frozenset("b"))
    there.close(other)
    assert (first.open, second.open) == (1, 1), "the place behind it waits for the first"
    there.close(offer)
    assert (first.open, second.open) == (0, 0)


def test_nobody_s_item_is_dropped_and_holds_up_nothing() -> None:
    there = offers()
    checkpoint = Checkpoint(["a"])
    offer = there.add(Item(key(1), "1", b"1"), ["a"], checkpoint)
    assert offer is not None
    assert not there.take(10, [])
    assert (len(there), checkpoint.open, offer.pending) == (0, 0, False)


async def test_assets_that_go_with_another() -> None:
    watchers = [RestWatcher(1, ("a", "b", "c")), RestWatcher(2, ("c",)), RestWatcher(3, ("a", "d"))]
    made = positions()
    attendance = Attendance("an endpoint", made, Tracks(made), lambda: frozenset(watchers))
    assert attendance.followers() == {"a": {"a", "b", "d"}, "c": {"c"}}


async def test_a_history_goes_on_until_somebody_deletes_or_changes_what_is_stored() -> None:
    """So what is found again is told from what was put back; the new one is stored before anything is found."""
    store = Store()

    async def history(asset: str = "a") -> str:
        fresh = positions(store)
        await fresh.load(asset)
        stored = store.values[asset, "k"]["history"].partition(":")[0]
        assert stored == fresh.of(asset).history
        return str(stored)

    begun = await history()
    assert await history() == begun, "before anything was found"
    read = positions(store)
    await read.load("a")
    read.add("a", key(1))
    read.of("a").move_to({"after": [1.5, "é", None]})
    await read.write()
    assert await history() == begun
    store.values["a", "k"]["cursor"] = {"after": [1.0]}
    changed = await history()
    assert changed != begun
    assert await history() == changed
    # An older version writes none.
    del store.values["a", "k"]["history"]
    older = await history()
    assert older not in (begun, changed)
    assert await history() == older
    del store.values["a", "k"]
    assert await history() not in (begun, changed, older)


async def test_an_asset_that_goes_on_where_another_stands_is_in_its_history() -> None:
    there = positions(Store())
    await there.load("a")
    await there.load("b")
    assert there.of("a").history != there.of("b").history
    there.copy("a", "b")
    assert there.of("a").history == there.of("b").history


async def test_a_changed_position_is_not_used_before_its_new_history_is_stored() -> None:
    store = Store()
    before = positions(store)
    await before.load("a")
    before.of("a").begin()
    await before.write()
    store.values["a", "k"]["cursor"] = "c3"
    store.writes_left = 0
    after = positions(store)
    with pytest.raises(StateStoreTrouble):
        await after.load("a")
    store.writes_left = None
    assert await after.load("a")
    assert after.of("a").begun
    assert after.of("a").cursor == "c3"
    assert store.values["a", "k"]["history"].startswith(f"{after.of('a').history}:")

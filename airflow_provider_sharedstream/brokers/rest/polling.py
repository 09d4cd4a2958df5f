"""Asking an endpoint page by page, and finding out what is new to whom."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from airflow_provider_sharedstream.brokers.rest.answers import Item, Page, Reader, changed, later
from airflow_provider_sharedstream.brokers.rest.asks import Ask, Asked, Paging, Validators
from airflow_provider_sharedstream.brokers.rest.attendance import Attendance
from airflow_provider_sharedstream.brokers.rest.errors import AnswerUnusable, Throttled
from airflow_provider_sharedstream.brokers.rest.http import Answer
from airflow_provider_sharedstream.brokers.rest.offers import Offer, Offers
from airflow_provider_sharedstream.brokers.rest.positions import Positions
from airflow_provider_sharedstream.brokers.rest.tracks import Remembered, Track, Tracks, Walk
from airflow_provider_sharedstream.stream.errors import SourceUnavailable
from airflow_provider_sharedstream.stream.reconnect import Backoff

log = logging.getLogger(__name__)

PAGE_PATIENCE_SECONDS = 10.0
"""How long the next page waits for a watcher that is slow on this one."""
JITTER = 0.1
"""By how much an interval varies, so that a hundred endpoints do not fire together."""
IN_THREAD_BYTES = 262_144
"""A larger answer is taken apart in a thread."""

Fetch = Callable[[Ask, "Validators | None"], Awaitable["Answer | None"]]


class Plan(NamedTuple):
    """How an endpoint is polled; see :class:`RestPollTrigger`."""

    reader: Reader
    paging: Paging
    cursor_param: str | None
    poll_interval: float
    max_pages: int
    max_known_ids: int


class Poller:
    """All that is known of an endpoint's items, and of who has had them.

    :param plan: how it is polled.
    :param stream: the endpoint in words.
    :param positions: up to where each asset has read.
    :param introductions: what those who listen now say of themselves.
    """

    def __init__(
        self, plan: Plan, stream: str, positions: Positions, introductions: Callable[[], Collection[Hashable]]
    ) -> None:
        self.first = Ask("", {})
        """The request for what there is from the beginning."""
        self.offers = Offers(time.monotonic)
        self._plan = plan
        self._stream = stream
        self._positions = positions
        self._tracks = Tracks(positions)
        self.attendance = Attendance(stream, positions, self._tracks, introductions)
        self._not_before = 0.0
        self._throttles = Backoff(1.0, 60.0)
        self._said: set[str] = set()

    # When.

    def next_seconds(self) -> float | None:
        """Return in how long the endpoint is to be asked; None: not before something is settled, or somebody comes."""
        times = [self._due_at(track) for track in self._tracks]
        if not times or self.offers.waiting:
            return None
        if self._plan.reader.whole_body and len(self.offers):
            # One change after the other: what it is like now would otherwise hide what it was like.
            return None
        return max(0.0, max(min(times), self._not_before) - time.monotonic())

    def _due_at(self, track: Track) -> float:
        since = track.held_since
        return track.next_at if since is None else max(track.next_at, since + PAGE_PATIENCE_SECONDS)

    def start_over(self) -> None:
        """Go back to what is settled, as after a failure. What wasn't handed out will be found again."""
        self._tracks.start_over()
        self.offers.drop_waiting()

    # Handing out.

    def take(self, most: int) -> list[Offer]:
        """Hand out up to ``most`` of what was found to those who are there."""
        present = self.attendance.present()
        histories = {watcher.lead: self._positions.of(watcher.lead).history for watcher in present}
        taken = self.offers.take(most, present)
        for offer in taken:
            offer.histories = histories
        return taken

    # Asking.

    async def read(self, fetch: Fetch) -> bool:
        """Ask for the page that is due, and offer what is new on it; return whether it was the last one for now.

        :raises Exception: of ``fetch``; :class:`AnswerUnusable`; :class:`SourceUnavailable`.
        """
        track = min(self._tracks, key=self._due_at)
        started = time.monotonic()
        walk = track.walk or track.begin(self._first_ask(track.cursor))
        remembered = track.remembered.get(walk.ask.key)
        try:
            answer = await fetch(walk.ask, remembered.validators if remembered else None)
        except Throttled as throttled:
            self._wait_as_told(throttled)
            return False
        self._throttles.reset()
        if answer is not None:
            page = await self._taken_apart(answer)
            self.attendance.present()
            self._found(track, walk, page)
            remembered = self._remember(walk, answer, page)
        elif remembered is not None:
            self._still_listed(walk, remembered)
        else:
            raise AnswerUnusable("status 304, although nothing was said of an earlier answer")
        last = self._turn_page(track, walk, remembered, started)
        await self._positions.write()
        self._tracks.merge()
        return last

    def _first_ask(self, cursor: object) -> Ask:
        ask = self._plan.paging.first(self.first)
        return ask if cursor is None or self._plan.cursor_param is None else ask.having(self._plan.cursor_param, cursor)

    async def _taken_apart(self, answer: Answer) -> Page:
        if not answer.body and not self._plan.reader.whole_body:
            return Page(())  # 204: there is nothing
        read = partial(self._plan.reader.read, answer.body, answer.content_type)
        return await asyncio.to_thread(read) if len(answer.body) > IN_THREAD_BYTES else read()

    def _wait_as_told(self, throttled: Throttled) -> None:
        seconds = max(throttled.seconds, self._throttles.next_seconds())
        self._not_before = time.monotonic() + seconds
        log.warning("%s asks to wait; it is asked again in %.1f s: %s", self._stream, seconds, throttled)

    # What is new to whom.

    def _found(self, track: Track, walk: Walk, page: Page) -> None:
        track.page = []
        if self._plan.reader.whole_body:
            for item in page.items:
                self._body_found(track, walk, item)
            return
        beginners = {lead for lead in track.leads & walk.leads if not self._positions.of(lead).begun}
        unknowing_of = self._positions.unknowing(track.leads)
        for item in page.items:
            if self._plan.cursor_param is None:
                walk.listed.add(item.key)
            unknowing = unknowing_of(item.key)
            for lead in beginners.intersection(unknowing):
                self._positions.add(lead, item.key)
            if wanting := [lead for lead in unknowing if lead not in beginners]:
                self._offer(track, walk, item, wanting)
        if len(walk.listed) > self._plan.max_known_ids:
            raise SourceUnavailable(
                f"the endpoint lists more than max_known_ids={self._plan.max_known_ids} items, and those that can't "
                "be remembered would come again and again. Raise it, or ask for less with params or a cursor."
            )

    def _body_found(self, track: Track, walk: Walk, item: Item) -> None:
        groups: dict[int, list[str]] = {}
        for lead in track.leads:
            position = self._positions.of(lead)
            if not position.begun:
                position.begin()
                position.change_to(item.key, 1)
            elif position.fingerprint != item.key:
                groups.setdefault(position.changes, []).append(lead)
        for changes, leads in groups.items():
            self._offer(track, walk, changed(item, changes), leads)

    def _offer(self, track: Track, walk: Walk, item: Item, leads: Collection[str]) -> None:
        if (offer := self.offers.add(item, leads, walk.checkpoint)) is not None:
            track.page.append(offer)

    def _still_listed(self, walk: Walk, remembered: Remembered) -> None:
        still_listed = self._positions.unknowing(())
        for key in remembered.keys:
            still_listed(key)
        if self._plan.cursor_param is None:
            walk.listed.update(remembered.keys)

    # From page to page.

    def _remember(self, walk: Walk, answer: Answer, page: Page) -> Remembered:
        if self._plan.reader.whole_body:
            return Remembered(answer.validators, (), None, page.cursor, 0)
        count = len(page.items)
        asked = Asked(
            walk.ask, answer.url, answer.link, page.document, count, walk.items + count, walk.pages + 1, page.cursor
        )
        keys = tuple(item.key for item in page.items)
        return Remembered(answer.validators, keys, self._plan.paging.next(asked), page.cursor, count)

    def _turn_page(self, track: Track, walk: Walk, page: Remembered, started: float) -> bool:
        """Go on to the next page, now or with the next poll, or end the walk; return whether it ends for now."""
        plan, following = self._plan, page.next
        walk.pages += 1
        walk.items += page.items
        if page.validators and len(walk.remembered) < plan.max_pages:
            walk.remembered[walk.ask.key] = page
        if plan.paging.by_cursor:
            walk.cursor = walk.cursor if page.cursor is None else page.cursor
        else:
            walk.cursor = later(walk.cursor, page.cursor)
        if following is not None and following.key in walk.asked:
            if not plan.paging.by_cursor:
                self._say_once("loop", "%s: a page leads back to an earlier one; nothing is seen behind it")
            following = None
        if following is None:
            self._end_walk(track, walk)
            track.next_at = self._next_poll(started)
            return True
        if plan.paging.by_cursor:
            walk.checkpoint.cursor, walk.checkpoint.read = walk.cursor, True
            track.new_checkpoint(walk)
            self._move_on()
            self._positions.trim()
        walk.ask = following
        walk.asked.add(following.key)
        if walk.pages % plan.max_pages:
            # Behind those whose poll is due, so that somebody who catches up keeps nobody waiting.
            track.next_at = time.monotonic()
            return False
        self._say_once("pages", "%s has more than max_pages pages: it is read on with the next poll")
        # What leads back is found within a poll; for pages without an end, what was asked would pile up.
        walk.asked = {following.key}
        track.next_at = self._next_poll(started)
        return True

    def _end_walk(self, track: Track, walk: Walk) -> None:
        track.walk = None
        track.remembered = walk.remembered
        track.cursor = walk.cursor
        walk.checkpoint.cursor, walk.checkpoint.read = walk.cursor, True
        followers = self.attendance.followers()
        for lead in track.leads & walk.leads:
            for asset in followers.get(lead, (lead,)):
                self._positions.of(asset).begin()
        self._move_on()
        self._positions.trim(walk.listed)

    def _move_on(self) -> None:
        """Move everybody's position to where everything before is settled."""
        followers = self.attendance.followers()
        for track in self._tracks:
            for lead, cursor in track.pass_checkpoints():
                for asset in followers.get(lead, (lead,)):
                    self._positions.of(asset).move_to(cursor)

    def _next_poll(self, started: float) -> float:
        return max(started + self._plan.poll_interval * random.uniform(1 - JITTER, 1 + JITTER), time.monotonic())

    # What became of it.

    async def conclude(self, offers: Sequence[Offer]) -> None:
        """Note that everybody who was shown an item has had it, and store that; whoever wasn't gets it still.

        :raises StateStoreTrouble: it is not stored; to be called again.
        """
        followers = self.attendance.followers()
        for offer in offers:
            if not offer.closed:
                self._conclude(offer, followers)
        self._move_on()
        await self._positions.write()
        for offer in offers:
            offer.pending = False
        self._tracks.merge()

    def _conclude(self, offer: Offer, followers: Mapping[str, Collection[str]]) -> None:
        missed = offer.missed_by()
        for lead in offer.leads - missed:
            changes = self._positions.of(lead).changes + 1
            for asset in followers.get(lead, (lead,)):
                if self._plan.reader.whole_body:
                    self._positions.of(asset).change_to(offer.item.key, changes)
                else:
                    self._positions.add(asset, offer.item.key)
        if still := self._tracks.leads.intersection(missed):
            self.offers.renew(offer, still)
        self.offers.close(offer)

    def _say_once(self, kind: str, text: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            log.warning(text, self._stream)

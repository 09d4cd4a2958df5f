"""The entities of a namespace, by path: queues, topics, subscriptions and their sub-queues."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.emulators.service_bus.content import Content
from tests.emulators.service_bus.queues import DEAD_LETTER_SUFFIX, Queue
from tests.emulators.service_bus.refusals import (
    dead_letter_queue_is_no_target,
    entity_exists,
    entity_not_found,
    topic_is_no_source,
)
from tests.emulators.service_bus.sessions import SessionQueue
from tests.emulators.service_bus.stored import QueueOptions


class Topic:
    """Every message goes to every subscription, under the topic's sequence number. There are no rules."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.subscriptions: list[Queue] = []
        self._numbers = 0

    def put(self, content: Content) -> int:
        self.check(content)
        self._numbers += 1
        for subscription in self.subscriptions:
            subscription.put(content, self._numbers)
        return self._numbers

    def check(self, content: Content) -> None:
        for subscription in self.subscriptions:
            subscription.check(content)

    def dispatch(self) -> None:
        for subscription in self.subscriptions:
            subscription.dispatch()

    def cancel_scheduled(self, sequence_number: int) -> None:
        for subscription in self.subscriptions:
            subscription.cancel_scheduled(sequence_number)


class Namespace:
    """Names are case-insensitive, as on the service."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._queues: dict[str, Queue] = {}
        self._topics: dict[str, Topic] = {}

    def create_queue(self, path: str, options: QueueOptions) -> Queue:
        """Raises Refusal where there is one already."""
        if path.lower() in self._queues or path.lower() in self._topics:
            raise entity_exists(path)
        kind = SessionQueue if options.requires_session else Queue
        queue = kind(path, options, clock=self._clock)
        self._queues[path.lower()] = queue
        return queue

    def create_topic(self, path: str) -> Topic:
        """Make a topic where there is none."""
        return self._topics.setdefault(path.lower(), Topic(path))

    def create_subscription(self, topic: str, name: str, options: QueueOptions) -> Queue:
        """Makes its topic, too, where there is none; raises Refusal where the subscription exists."""
        owner = self.create_topic(topic)
        subscription = self.create_queue(f"{topic}/Subscriptions/{name}", options)
        owner.subscriptions.append(subscription)
        return subscription

    def delete(self, path: str) -> list[str]:
        """Delete a queue, subscription or topic; returns its path and those of what went with it, in lower case."""
        self.entity(path)
        path = path.lower()
        topic = self._topics.pop(path, None)
        gone = [path] + [subscription.path.lower() for subscription in topic.subscriptions] if topic else [path]
        for name in gone:
            self._queues.pop(name, None)
        for other in self._topics.values():
            other.subscriptions = [known for known in other.subscriptions if known.path.lower() not in gone]
        return gone + [name + DEAD_LETTER_SUFFIX.lower() for name in gone]

    def queues(self) -> Iterator[Queue]:
        """Queues and subscriptions; each sweeps its dead-letter queue itself."""
        return iter(list(self._queues.values()))

    def source(self, path: str) -> Queue:
        """What can be received from at that path; raises Refusal."""
        path = path.lower()
        suffix = DEAD_LETTER_SUFFIX.lower()
        found = self._queues.get(path.removesuffix(suffix))
        if found is not None and path.endswith(suffix):
            found = found.dead_letters
        if found is None:
            if path in self._topics:
                raise topic_is_no_source(path)
            raise entity_not_found(path)
        return found

    def target(self, path: str) -> Queue | Topic:
        """What can be sent to at that path; raises Refusal."""
        if path.lower().endswith(DEAD_LETTER_SUFFIX.lower()):
            raise dead_letter_queue_is_no_target(path)
        return self.entity(path)

    def entity(self, path: str) -> Queue | Topic:
        """Whatever is at that path; raises Refusal where nothing is."""
        return self._topics.get(path.lower()) or self.source(path)

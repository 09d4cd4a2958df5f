"""Topics and subscriptions by name."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Sequence
from threading import Condition

from google.pubsub_v1.types import PubsubMessage, Subscription, Topic

from tests.emulators.pubsub import errors
from tests.emulators.pubsub.backlog import Backlog

DELETED_TOPIC = "_deleted-topic_"


class Broker:
    """All there is. Callers hold `changed`, and it is notified of everything that may let a receiver go on.

    :param shortest_deadline_seconds: of subscriptions and streams; the service's is 10.
    """

    def __init__(self, shortest_deadline_seconds: int = 10) -> None:
        self.changed = Condition()
        self.shortest_deadline_seconds = shortest_deadline_seconds
        self.topics: dict[str, Topic] = {}
        self.backlogs: dict[str, Backlog] = {}
        self._message_ids = itertools.count(1)

    def create_topic(self, topic: Topic) -> Topic:
        if topic.name in self.topics:
            raise errors.already_exists("topic", topic.name)
        self.topics[topic.name] = topic
        return topic

    def topic(self, name: str) -> Topic:
        try:
            return self.topics[name]
        except KeyError:
            raise errors.not_found("topic", name) from None

    def delete_topic(self, name: str) -> None:
        self.topic(name)
        del self.topics[name]
        for backlog in self.backlogs.values():
            if backlog.subscription.topic == name:
                backlog.subscription.topic = DELETED_TOPIC

    def publish(self, topic: str, messages: Sequence[PubsubMessage]) -> list[str]:
        self.topic(topic)
        if not 0 < len(messages) <= errors.MAX_PUBLISH_MESSAGES:
            raise errors.invalid(f"The value for message_count is out of range: 1 to {errors.MAX_PUBLISH_MESSAGES}.")
        for message in messages:
            if not (message.data or message.attributes or message.ordering_key):
                raise errors.invalid("One or more messages in the publish request is empty.")
        backlogs = [backlog for backlog in self.backlogs.values() if backlog.subscription.topic == topic]
        for message in messages:
            message.message_id = str(next(self._message_ids))
            message.publish_time = datetime.datetime.now(datetime.timezone.utc)
            for backlog in backlogs:
                backlog.add(message)
        self.changed.notify_all()
        return [message.message_id for message in messages]

    def create_subscription(self, subscription: Subscription) -> Subscription:
        if subscription.name in self.backlogs:
            raise errors.already_exists("subscription", subscription.name)
        self.topic(subscription.topic)
        subscription.ack_deadline_seconds = subscription.ack_deadline_seconds or 10
        self._check(subscription)
        self.backlogs[subscription.name] = Backlog(subscription, self._bury)
        return subscription

    def update_subscription(self, changes: Subscription, fields: Sequence[str]) -> Subscription:
        backlog = self.backlog(changes.name)
        for field in fields:
            if field in ("name", "topic", "enable_message_ordering", "filter"):
                raise errors.invalid(f"The field {field} can't be changed.")
        before = backlog.subscription
        after = Subscription(before)
        for field in fields:
            setattr(after, field, getattr(changes, field) if field in changes else None)
        self._check(after)
        backlog.subscription = after
        self.changed.notify_all()
        return after

    def backlog(self, name: str) -> Backlog:
        try:
            return self.backlogs[name]
        except KeyError:
            raise errors.not_found("subscription", name) from None

    def delete_subscription(self, name: str) -> None:
        self.backlog(name)
        del self.backlogs[name]
        self.changed.notify_all()

    def _check(self, subscription: Subscription) -> None:
        errors.check_deadline("ack deadline", subscription.ack_deadline_seconds, self.shortest_deadline_seconds)
        if subscription.filter or subscription.push_config.push_endpoint:
            raise errors.invalid("This emulator knows neither filters nor push.")
        if "dead_letter_policy" in subscription:
            policy = subscription.dead_letter_policy
            self.topic(policy.dead_letter_topic)
            if policy.max_delivery_attempts and not 5 <= policy.max_delivery_attempts <= 100:
                raise errors.invalid("max_delivery_attempts must be between 5 and 100.")

    def _bury(self, topic: str, message: PubsubMessage) -> bool:
        if topic not in self.topics:
            return False
        self.publish(topic, [message])
        return True

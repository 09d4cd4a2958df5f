"""What can be known of a subscription before anything is taken from it."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

from airflow_provider_sharedstream.brokers.pubsub.client import PubSubClient
from airflow_provider_sharedstream.brokers.pubsub.errors import clear, code_of
from airflow_provider_sharedstream.stream.errors import SourceUnavailable

log = logging.getLogger(__name__)

SHORTEST_DEADLINE_SECONDS = 10
"""Of a subscription; taken for its own where that may not be looked at."""
LEAST_ATTEMPTS = 5
"""What a dead-letter policy without a number has."""
NOT_PULLED = (
    ("push_config", "push_endpoint"),
    ("bigquery_config", "table"),
    ("cloud_storage_config", "bucket"),
    ("detached",),
)
"""Settings of subscriptions that nobody can pull from."""


class Subscription(NamedTuple):
    """The settings of a subscription that matter here."""

    ordered: bool = False
    ack_deadline_seconds: int = SHORTEST_DEADLINE_SECONDS
    topic: str = ""
    policy_topic: str = ""
    """Where its dead-letter policy moves messages; empty: it has none."""
    policy_attempts: int = 0


def full_name(kind: str, name: str, project: str | None, hint: str) -> str:
    """Return the full name of a ``subscriptions`` or ``topics`` resource.

    :param hint: where a project can be set.
    :raises SourceUnavailable: the name is a short one and there is no project.
    """
    if "/" in name:
        return name
    if not project:
        raise SourceUnavailable(f"{name!r}: no project. Set project_id, or project in the extra of {hint}")
    return f"projects/{project}/{kind}/{name}"


async def look_at_subscription(client: PubSubClient, path: str, where: str) -> Subscription:
    """Return the settings, or the careful ones where they may not be looked at.

    :param where: the argument that names it, and its value.
    :raises SourceUnavailable: nobody can pull from it.
    """
    try:
        settings = await client.look_at_subscription(path)
    except Exception as error:
        if code_of(error) != "PERMISSION_DENIED":
            raise
        # Whoever may consume need not be allowed to look. What is wrong besides, receiving will show.
        log.info("The settings of %s can't be looked at: %s", path, error)
        return Subscription(ordered=True)
    for setting in NOT_PULLED:
        value: Any = settings
        for name in setting:
            value = getattr(value, name, None)
        if value:
            raise SourceUnavailable(
                f"{where}: nobody can pull from it, since it has {'.'.join(setting)}={value!r}. "
                "Name a pull subscription"
            )
    policy = settings.dead_letter_policy
    return Subscription(
        ordered=settings.enable_message_ordering,
        ack_deadline_seconds=settings.ack_deadline_seconds,
        topic=settings.topic,
        policy_topic=policy.dead_letter_topic,
        policy_attempts=policy.max_delivery_attempts or LEAST_ATTEMPTS,
    )


async def check_dead_letter_topic(client: PubSubClient, path: str, source: Subscription, identity: str) -> None:
    """Find out whether rejected messages can go to a topic.

    :param identity: the argument that names who asks, and its value.
    :raises SourceUnavailable: they can't.
    """
    where = f"dead_letter_topic={path!r}"
    if source.topic == path:
        raise SourceUnavailable(f"{where} is the subscription's own topic: a rejected message would come back for ever")
    try:
        await client.look_at_topic(path)
    except Exception as error:
        # Whoever may publish need not be allowed to look.
        if code_of(error) != "PERMISSION_DENIED":
            raise clear(error, where, identity) from error

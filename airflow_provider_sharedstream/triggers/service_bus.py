"""Azure Service Bus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.service_bus.adapter import ServiceBusSharedStreamProducer
from airflow_provider_sharedstream.triggers.arguments import FLAG, TEXT, TEXT_OR_NONE, Argument, CommonArguments
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger


class ServiceBusSharedStreamTrigger(BrokerEventTrigger):
    """Fires when messages arrive in a Service Bus queue, or in a subscription of a topic.

    A rejected message goes to the entity's dead-letter queue, with the reason and, as its description, JSON that says
    which watcher rejected it, where and when. Locks are renewed while a message is open. With sessions, the messages of
    each keep their order through failures.

    :param queue_name: the queue; either this or ``topic_name`` with ``subscription_name``.
    :param topic_name: the topic.
    :param subscription_name: its subscription.
    :param azure_service_bus_conn_id: the Airflow connection. Default: ``azure_service_bus_default``.
    :param session_enabled: whether the queue or subscription requires sessions. Default: False.
    :param sub_queue: ``deadletter`` or ``transferdeadletter``: watch the entity's dead letters instead. What is
        rejected there has nowhere to go and is released with a growing delay. Default: none.
    :param max_concurrent_sessions: sessions that are received from at once, each over a connection of its own. Default:
        8; at most 100.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`.
    """

    producer_class = ServiceBusSharedStreamProducer
    shows_put_back = True
    ARGUMENTS = {
        "queue_name": Argument(None, TEXT_OR_NONE),
        "topic_name": Argument(None, TEXT_OR_NONE),
        "subscription_name": Argument(None, TEXT_OR_NONE),
        "azure_service_bus_conn_id": Argument("azure_service_bus_default", TEXT),
        "session_enabled": Argument(False, FLAG),
        "sub_queue": Argument(None, {"enum": [None, "deadletter", "transferdeadletter"]}),
        "max_concurrent_sessions": Argument(8, {"type": "integer", "minimum": 1, "maximum": 100}),
    }

    def __init__(
        self,
        queue_name: str | None = None,
        topic_name: str | None = None,
        subscription_name: str | None = None,
        azure_service_bus_conn_id: str = "azure_service_bus_default",
        session_enabled: bool = False,
        sub_queue: Literal["deadletter", "transferdeadletter"] | None = None,
        max_concurrent_sessions: int = 8,
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "queue_name": queue_name,
            "topic_name": topic_name,
            "subscription_name": subscription_name,
            "azure_service_bus_conn_id": azure_service_bus_conn_id,
            "session_enabled": session_enabled,
            "sub_queue": sub_queue,
            "max_concurrent_sessions": max_concurrent_sessions,
        }
        super().__init__(common, **own)

    def check(self) -> Iterator[str]:
        """Yield what no single argument shows."""
        queue, topic, subscription = (
            self.arguments[name] for name in ("queue_name", "topic_name", "subscription_name")
        )
        if queue is not None and topic is not None:
            yield f"queue_name={queue!r}, topic_name={topic!r}: expected one of them, not both"
        elif queue is None and topic is None:
            yield "queue_name=None, topic_name=None: expected queue_name, or topic_name with subscription_name"
        if topic is not None and subscription is None:
            yield f"topic_name={topic!r}, subscription_name=None: expected the name of the topic's subscription, too"
        if topic is None and subscription is not None:
            yield f"subscription_name={subscription!r}, topic_name=None: expected the name of its topic, too"
        if self.arguments["session_enabled"] and self.arguments["sub_queue"] is not None:
            yield (
                f"session_enabled=True, sub_queue={self.arguments['sub_queue']!r}: dead letters have no sessions, even "
                "where the entity has; expected session_enabled=False"
            )

    @property
    def source_name(self) -> tuple[str, ...]:
        """The entity, in lower case: names are case-insensitive."""
        names = ("queue_name", "topic_name", "subscription_name", "sub_queue")
        return tuple(str(self.arguments[name]).lower() for name in names)

"""Queues for ``MessageQueueTrigger`` of the common messaging provider, each by its scheme.

What it stores is the trigger of this package, so that a watcher made by it shares the stream of those made directly.
"""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider

from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger


class SqsQueue(BaseMessageQueueProvider):
    """Amazon SQS."""

    scheme = "sharedstream+sqs"

    def trigger_class(self) -> type[BrokerEventTrigger]:
        """Return the class to which all other arguments go."""
        from airflow_provider_sharedstream.triggers.sqs import SqsSharedStreamTrigger

        return SqsSharedStreamTrigger


class KafkaQueue(BaseMessageQueueProvider):
    """Apache Kafka."""

    scheme = "sharedstream+kafka"

    def trigger_class(self) -> type[BrokerEventTrigger]:
        """Return the class to which all other arguments go."""
        from airflow_provider_sharedstream.triggers.kafka import KafkaSharedStreamTrigger

        return KafkaSharedStreamTrigger


class PubSubQueue(BaseMessageQueueProvider):
    """Google Pub/Sub."""

    scheme = "sharedstream+pubsub"

    def trigger_class(self) -> type[BrokerEventTrigger]:
        """Return the class to which all other arguments go."""
        from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger

        return PubSubSharedStreamTrigger


class ServiceBusQueue(BaseMessageQueueProvider):
    """Azure Service Bus."""

    scheme = "sharedstream+servicebus"

    def trigger_class(self) -> type[BrokerEventTrigger]:
        """Return the class to which all other arguments go."""
        from airflow_provider_sharedstream.triggers.service_bus import ServiceBusSharedStreamTrigger

        return ServiceBusSharedStreamTrigger

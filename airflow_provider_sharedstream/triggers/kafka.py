"""Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.kafka.adapter import KafkaSharedStreamProducer
from airflow_provider_sharedstream.brokers.kafka.delivery import KafkaDelivery
from airflow_provider_sharedstream.brokers.kafka.topics import Topics
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.triggers.arguments import REQUIRED, TEXT, TEXT_OR_NONE, Argument, CommonArguments
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger


class KafkaSharedStreamTrigger(BrokerEventTrigger):
    """Fires when records arrive in topics of Apache Kafka.

    All watchers that agree in the topics, the connection and the group are one member of the group. A partition keeps
    its order through failures: what lies behind a record that failed waits for it. An offset is committed when every
    record before it has its events stored, or lies in ``dead_letter_topic``.

    :param topics: names; one that begins with ``^`` is a regular expression on the names of all topics, including those
        created later. A single name may be given as a text. Required.
    :param kafka_config_id: the Airflow connection, with librdkafka's configuration in its extra, as the official
        provider's. Default: ``kafka_default``.
    :param group_id: the consumer group. Default: the connection's ``group.id``; one of the two must be there.
    :param auto_offset_reset: where a partition begins that the group has committed nothing for: ``earliest``;
        ``latest``: with what is published after the stream first looked; ``none``: an error. Default: the
        connection's ``auto.offset.reset``, else ``latest``, as in librdkafka.
    :param dead_letter_topic: where rejected records go, with key, value and headers, and the reason in further headers.
        Default: none.
    :param missing_topics: ``fail`` (default): a missing topic is an error, and nothing is read; ``wait``: it is read
        once it exists, from its beginning.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`.
    """

    producer_class = KafkaSharedStreamProducer
    shows_put_back = True
    ARGUMENTS = {
        "topics": Argument(REQUIRED, {"type": "array", "items": TEXT, "minItems": 1}, example=["orders"]),
        "kafka_config_id": Argument("kafka_default", TEXT),
        "group_id": Argument(None, TEXT_OR_NONE),
        "auto_offset_reset": Argument(None, {"enum": [None, "earliest", "latest", "none"]}),
        "dead_letter_topic": Argument(None, TEXT_OR_NONE),
        "missing_topics": Argument("fail", {"enum": ["fail", "wait"]}),
    }

    def __init__(
        self,
        topics: str | Sequence[str] = REQUIRED,
        kafka_config_id: str = "kafka_default",
        group_id: str | None = None,
        auto_offset_reset: Literal["earliest", "latest", "none"] | None = None,
        dead_letter_topic: str | None = None,
        missing_topics: Literal["fail", "wait"] = "fail",
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "topics": _in_order(topics),
            "kafka_config_id": kafka_config_id,
            "group_id": group_id,
            "auto_offset_reset": auto_offset_reset,
            "dead_letter_topic": dead_letter_topic,
            "missing_topics": missing_topics,
        }
        super().__init__(common, **own)

    def check(self) -> Iterator[str]:
        names, dead_letter_topic = self.arguments["topics"], self.arguments["dead_letter_topic"]
        try:
            topics = Topics(names)
        except ValueError as error:
            yield f"topics={names!r}: {error}"
            return
        if dead_letter_topic is not None and dead_letter_topic in topics:
            yield (
                f"dead_letter_topic={dead_letter_topic!r} is one of the topics that are read: a rejected record would "
                "come back for ever"
            )

    def history_of(self, delivery: Delivery) -> str:
        """Return the history in which its partition is read."""
        return cast("KafkaDelivery", delivery).history


def _in_order(topics: Any) -> Any:
    """Return names so that the same ones in another order make the same stream; what isn't names stays as it is."""
    if isinstance(topics, str):
        return [topics]
    if isinstance(topics, (list, tuple, set, frozenset)) and all(isinstance(topic, str) for topic in topics):
        return sorted(set(topics))
    return topics

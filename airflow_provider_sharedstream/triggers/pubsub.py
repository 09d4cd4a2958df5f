"""Google Pub/Sub."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.pubsub.adapter import PubSubSharedStreamProducer
from airflow_provider_sharedstream.triggers.arguments import REQUIRED, TEXT_OR_NONE, Argument, CommonArguments, Schema
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

SUBSCRIPTION: Schema = {
    "type": "string",
    "pattern": r"^([^/]+|projects/[^/]+/subscriptions/[^/]+)$",
    "description": "a name such as 'orders' or 'projects/my-project/subscriptions/orders'",
}
TOPIC_OR_NONE: Schema = {
    "type": ["string", "null"],
    "pattern": r"^([^/]+|projects/[^/]+/topics/[^/]+)$",
    "description": "a name such as 'rejected' or 'projects/my-project/topics/rejected'",
}
ENDPOINT_OR_NONE: Schema = {
    "type": ["string", "null"],
    "pattern": r"^[^/:]+(:\d+)?$",
    "description": "a host such as 'europe-west1-pubsub.googleapis.com', with or without a port",
}
ACCOUNTS_OR_NONE: Schema = {
    "type": ["string", "array", "null"],
    "minLength": 1,
    "minItems": 1,
    "items": {"type": "string", "minLength": 1},
}


class PubSubSharedStreamTrigger(BrokerEventTrigger):
    """Fires when messages arrive in a Pub/Sub subscription.

    A rejected message is published to ``dead_letter_topic``, with the reason in its attributes, and acknowledged only
    then. Without that topic it is released with a growing delay, until the subscription's own dead-letter policy, if it
    has one, moves it. Where the subscription orders messages, those of one ordering key keep their order through
    failures.

    :param project_id: the Google Cloud project. None: the connection's, or the one of its credentials. Required.
    :param subscription: name, or full name (``projects/<project>/subscriptions/<name>``). Required.
    :param gcp_conn_id: the Airflow connection. Default ``google_cloud_default``; None, or no ``google_cloud_default``:
        application default credentials. Where ``PUBSUB_EMULATOR_HOST`` is set no credentials are asked for.
    :param impersonation_chain: the service account to act as, or a list of those that lead to it, with it at the
        end. Goes before the connection's. Default: none.
    :param dead_letter_topic: name, or full name, of the topic that rejected messages go to. Default: none.
    :param ack_deadline_seconds: the lease; it is renewed while a message is open. Default: 60, as of Google's own
        clients; from 10 to 600, the limits of Pub/Sub.
    :param endpoint: host, with a port where it isn't 443, of a regional endpoint such as
        ``europe-west1-pubsub.googleapis.com``: messages with ordering keys, and exactly-once delivery, stay within one
        region. Default: the global one.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`.
    """

    producer_class = PubSubSharedStreamProducer
    instead_of_durable: ClassVar[str] = (
        "neither a message nor the subscription says that somebody sought it. Leave it out, and repeats are told from "
        "memory; exactly-once delivery, an option of the subscription, brings back nothing that was acknowledged"
    )
    ARGUMENTS = {
        "project_id": Argument(REQUIRED, TEXT_OR_NONE, example="my-project"),
        "subscription": Argument(REQUIRED, SUBSCRIPTION, example="orders"),
        "gcp_conn_id": Argument("google_cloud_default", TEXT_OR_NONE),
        "impersonation_chain": Argument(None, ACCOUNTS_OR_NONE),
        "dead_letter_topic": Argument(None, TOPIC_OR_NONE),
        "ack_deadline_seconds": Argument(60, {"type": "integer", "minimum": 10, "maximum": 600}),
        "endpoint": Argument(None, ENDPOINT_OR_NONE),
    }

    def __init__(
        self,
        project_id: str | None = REQUIRED,
        subscription: str = REQUIRED,
        gcp_conn_id: str | None = "google_cloud_default",
        impersonation_chain: str | list[str] | None = None,
        dead_letter_topic: str | None = None,
        ack_deadline_seconds: int = 60,
        endpoint: str | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "project_id": project_id,
            "subscription": subscription,
            "gcp_conn_id": gcp_conn_id,
            "impersonation_chain": impersonation_chain,
            "dead_letter_topic": dead_letter_topic,
            "ack_deadline_seconds": ack_deadline_seconds,
            "endpoint": endpoint,
        }
        super().__init__(common, **own)

    def check(self) -> Iterator[str]:
        """Yield what no single argument shows."""
        project, subscription = self.arguments["project_id"], self.arguments["subscription"]
        if project is not None and "/" in subscription and subscription.split("/")[1] != project:
            yield (
                f"subscription={subscription!r}: it is in another project than project_id={project!r}; project_id=None "
                "goes by the subscription"
            )

"""SQS."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from airflow_provider_sharedstream.brokers.sqs.adapter import SqsSharedStreamProducer
from airflow_provider_sharedstream.triggers.arguments import REQUIRED, TEXT, TEXT_OR_NONE, Argument, CommonArguments
from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger


class SqsSharedStreamTrigger(BrokerEventTrigger):
    """Fires when messages arrive in an SQS queue, standard or FIFO.

    A rejected message is sent to ``dead_letter_queue``, or to the target of the queue's redrive policy, with the
    reason in its message attributes, and deleted only then. In a FIFO queue the messages of a group keep their order
    through failures.

    :param sqs_queue: name, URL or ARN. Required. With a URL its host is called, unless the connection names an
        endpoint: AWS in any partition, a VPC endpoint, a local emulator.
    :param aws_conn_id: the Airflow connection. Default ``aws_default``; None, or no ``aws_default``: the SDK's own
        chain.
    :param region_name: overrides the connection's region. Default: the connection's, or the one in the URL or ARN.
    :param wait_time_seconds: how long a receive waits when there is nothing. Default and most: 20, the limit of SQS.
    :param visibility_timeout: the lease in seconds; it is renewed while a message is open. Default: the queue's own.
        At most 43,200, the limit of SQS.
    :param dead_letter_queue: name, URL or ARN of where rejected messages go. Default: the target of the redrive policy.
    :param common: see :class:`~airflow_provider_sharedstream.triggers.arguments.CommonArguments`.
    """

    producer_class = SqsSharedStreamProducer
    shows_put_back = True
    ARGUMENTS = {
        "sqs_queue": Argument(REQUIRED, TEXT, example="orders"),
        "aws_conn_id": Argument("aws_default", TEXT_OR_NONE),
        "region_name": Argument(None, TEXT_OR_NONE),
        "wait_time_seconds": Argument(20, {"type": "integer", "minimum": 0, "maximum": 20}),
        "visibility_timeout": Argument(None, {"type": ["integer", "null"], "minimum": 2, "maximum": 43_200}),
        "dead_letter_queue": Argument(None, TEXT_OR_NONE),
    }

    def __init__(
        self,
        sqs_queue: str = REQUIRED,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        wait_time_seconds: int = 20,
        visibility_timeout: int | None = None,
        dead_letter_queue: str | None = None,
        **common: Unpack[CommonArguments],
    ) -> None:
        own: dict[str, Any] = {
            "sqs_queue": sqs_queue,
            "aws_conn_id": aws_conn_id,
            "region_name": region_name,
            "wait_time_seconds": wait_time_seconds,
            "visibility_timeout": visibility_timeout,
            "dead_letter_queue": dead_letter_queue,
        }
        super().__init__(common, **own)

    @property
    def source_name(self) -> str:
        """The queue's name, be it given as name, URL or ARN."""
        return str(self.arguments["sqs_queue"]).rpartition("/")[2].rpartition(":")[2]

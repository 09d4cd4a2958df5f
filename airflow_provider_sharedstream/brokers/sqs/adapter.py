"""Amazon SQS, standard and FIFO."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import datetime, timezone
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_sharedstream.brokers.sqs.dead_letter import Copy, copies_of, in_requests
from airflow_provider_sharedstream.brokers.sqs.errors import GONE_CODES, EntryFailed, NotConnected, clear, is_transient
from airflow_provider_sharedstream.connections.aws import aws_client
from airflow_provider_sharedstream.stream.consumer import BrokerLimits, Capabilities, Failures, LaneOwner
from airflow_provider_sharedstream.stream.delivery import Delivery
from airflow_provider_sharedstream.stream.disposition import Disposition
from airflow_provider_sharedstream.stream.errors import LeaseLost, SourceUnavailable
from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer

BATCH = 10
"""Most messages in one ReceiveMessage, most entries in one batch request (SQS developer guide, message quotas)."""
PARALLEL_RECEIVES = 8
PARALLEL_SETTLES = 8
LONGEST_VISIBILITY_SECONDS = 43_200
"""Twelve hours, from the receive (ChangeMessageVisibility)."""


class SqsConsumer:
    """One client on one queue. The arguments are those of :class:`SqsSharedStreamTrigger`."""

    source = "sqs"

    def __init__(
        self,
        sqs_queue: str,
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        wait_time_seconds: int = 20,
        visibility_timeout: int | None = None,
        dead_letter_queue: str | None = None,
    ) -> None:
        self._queue = sqs_queue
        self._aws_conn_id = aws_conn_id
        self._region_name = region_name
        self._wait_time_seconds = wait_time_seconds
        self._visibility_timeout = visibility_timeout
        self._dead_letter_queue = dead_letter_queue
        self.stream = queue_name(str(sqs_queue))
        self.lane_owner: LaneOwner | None = None
        self.capabilities = Capabilities(
            ordered_lanes=self.stream.endswith(".fifo"),
            dead_letters_by="dead_letter_queue or the queue's redrive policy",
        )
        self.limits = BrokerLimits(receive_batch=BATCH, settle_batch=BATCH)
        self.dead_letter_place: str | None = None
        self._url = ""
        self._dead_letter_url = ""
        self._client: Any = None
        self._resources: AsyncExitStack | None = None

    @property
    def identity(self) -> str:
        return f"sqs:{self._url or self._queue}"

    async def connect(self) -> None:
        await self.close()
        resources = self._resources = AsyncExitStack()
        endpoint_url = None
        if "://" in self._queue:
            parts = urlsplit(self._queue)
            # A VPC endpoint, GovCloud, an emulator: whoever gives an address wants that address to be called.
            endpoint_url = f"{parts.scheme}://{parts.netloc}"
        try:
            client = await aws_client(
                "sqs",
                self._aws_conn_id,
                self._region_name or _region_of_arn(self._queue),
                endpoint_url=endpoint_url,
                read_timeout_seconds=self._wait_time_seconds + 15,
            )
            self._client = await resources.enter_async_context(client)
            await self._look_at_queue()
        except Exception as error:
            raise self._clear(error) from error

    async def _look_at_queue(self) -> None:
        self._url = await self._url_of(self._queue, "sqs_queue")
        answer = await self._client.get_queue_attributes(
            QueueUrl=self._url, AttributeNames=["QueueArn", "RedrivePolicy", "VisibilityTimeout"]
        )
        attributes = answer.get("Attributes", {})
        lease_seconds = float(self._visibility_timeout or attributes.get("VisibilityTimeout", 30) or 30)
        self.limits = BrokerLimits(
            receive_batch=BATCH,
            settle_batch=BATCH,
            lease_seconds=lease_seconds,
            parallel_receives=PARALLEL_RECEIVES,
            parallel_settles=PARALLEL_SETTLES,
        )
        target = self._dead_letter_queue or json.loads(attributes.get("RedrivePolicy", "{}")).get("deadLetterTargetArn")
        self.dead_letter_place = None
        if target:
            argument = "dead_letter_queue" if self._dead_letter_queue else "the queue's redrive policy"
            self._dead_letter_url = await self._url_of(target, argument)
            if self._dead_letter_url == self._url:
                raise SourceUnavailable(
                    f"{argument}={target!r} is the queue itself: a rejected message would come back for ever"
                )
            self.dead_letter_place = f"queue {queue_name(target)}"

    async def _url_of(self, queue: str, argument: str) -> str:
        if "://" in queue:
            return queue
        owner = {}
        if queue.startswith("arn:"):
            owner = {"QueueOwnerAWSAccountId": queue.split(":")[4]}
        try:
            answer = await self._client.get_queue_url(QueueName=queue_name(queue), **owner)
        except Exception as error:
            raise self._clear(error, f"{argument}={queue!r}") from error
        return str(answer["QueueUrl"])

    async def receive(self, max_messages: int) -> Sequence[Delivery]:
        lease = {} if self._visibility_timeout is None else {"VisibilityTimeout": self._visibility_timeout}
        try:
            answer = await self._connected().receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=min(max_messages, BATCH),
                WaitTimeSeconds=self._wait_time_seconds,
                AttributeNames=["All"],
                MessageAttributeNames=["All"],
                **lease,
            )
        except Exception as error:
            raise self._clear(error) from error
        return [self._delivery(message) for message in answer.get("Messages", ())]

    def _delivery(self, message: Mapping[str, Any]) -> Delivery:
        system = message.get("Attributes", {})
        group = system.get("MessageGroupId")
        body = message.get("Body", "")
        attributes = {
            "queue": self.stream,
            "sender_id": system.get("SenderId"),
            "message_group_id": group,
            "sequence_number": system.get("SequenceNumber"),
            "deduplication_id": system.get("MessageDeduplicationId"),
            "trace_header": system.get("AWSTraceHeader"),
            "dead_letter_source": system.get("DeadLetterQueueSourceArn"),
        }
        return Delivery(
            id=message["MessageId"],
            body=body,
            handle=(
                message["ReceiptHandle"],
                message.get("MessageAttributes", {}),
                system.get("MessageDeduplicationId"),
            ),
            headers={name: _value(attribute) for name, attribute in message.get("MessageAttributes", {}).items()},
            key=group,
            published_at=_moment(system.get("SentTimestamp")),
            delivery_count=int(system.get("ApproximateReceiveCount", 0)),
            attributes={name: value for name, value in attributes.items() if value is not None},
            lane=group if self.capabilities.ordered_lanes else None,
            # What Python holds for a text and the dictionaries around it.
            size=len(body) + 1024,
        )

    async def settle(self, disposition: Disposition, deliveries: Sequence[Delivery]) -> Failures:
        client = self._connected()
        if disposition is Disposition.ACCEPT:
            return await self._in_batch(client.delete_message_batch, deliveries, lambda delivery: {})
        if disposition is Disposition.RELEASE:
            failures = await self._in_batch(
                client.change_message_visibility_batch,
                deliveries,
                lambda d: {"VisibilityTimeout": min(math.ceil(d.release_delay_seconds), LONGEST_VISIBILITY_SECONDS)},
            )
            # What isn't ours any more is released already.
            return {delivery: error for delivery, error in failures.items() if not isinstance(error, LeaseLost)}
        raise NotImplementedError(f"SQS has no {disposition.value}")

    async def store_dead_letters(self, deliveries: Sequence[Delivery]) -> Failures:
        failures: dict[Delivery, BaseException] = {}
        fifo = self._dead_letter_url.endswith(".fifo")
        copies = copies_of(deliveries, self.identity, fifo=fifo)
        for request in in_requests(copies, BATCH):
            by_id: dict[str, Copy] = {copy.entry["Id"]: copy for copy in request}
            try:
                answer = await self._connected().send_message_batch(
                    QueueUrl=self._dead_letter_url, Entries=[copy.entry for copy in request]
                )
            except Exception as error:
                failures.update((copy.delivery, self._clear(error, "dead letters")) for copy in request)
                continue
            for failed in answer.get("Failed", ()):
                failures[by_id[failed["Id"]].delivery] = EntryFailed(failed)
        return failures

    async def extend_leases(self, deliveries: Sequence[Delivery]) -> Collection[Delivery]:
        seconds = int(self.limits.lease_seconds or 0)
        failures = await self._in_batch(
            self._connected().change_message_visibility_batch, deliveries, lambda d: {"VisibilityTimeout": seconds}
        )
        # A renewal that fails for another reason is tried again before the lease runs out.
        if other := [error for error in failures.values() if not isinstance(error, LeaseLost)]:
            if len(other) == len(deliveries):
                raise other[0]
        return [delivery for delivery, error in failures.items() if isinstance(error, LeaseLost)]

    async def _in_batch(
        self,
        request: Callable[..., Any],
        deliveries: Sequence[Delivery],
        more: Callable[[Delivery], Mapping[str, Any]],
    ) -> dict[Delivery, BaseException]:
        entries = [
            {"Id": str(number), "ReceiptHandle": delivery.handle[0], **more(delivery)}
            for number, delivery in enumerate(deliveries)
        ]
        try:
            answer = await request(QueueUrl=self._url, Entries=entries)
        except Exception as error:
            raise self._clear(error) from error
        failures: dict[Delivery, BaseException] = {}
        for failed in answer.get("Failed", ()):
            delivery = deliveries[int(failed["Id"])]
            gone = failed.get("Code") in GONE_CODES or "expired" in failed.get("Message", "")
            failures[delivery] = LeaseLost(f"{delivery.id}: {failed.get('Message')}") if gone else EntryFailed(failed)
        return failures

    def is_transient(self, error: BaseException) -> bool:
        return is_transient(error)

    async def close(self) -> None:
        resources, self._resources, self._client = self._resources, None, None
        if resources is not None:
            await resources.aclose()

    def _connected(self) -> Any:
        if self._client is None:
            raise NotConnected("not connected to SQS")
        return self._client

    def _clear(self, error: Exception, where: str | None = None) -> Exception:
        return clear(error, where or f"sqs_queue={self._queue!r}", f"aws_conn_id={self._aws_conn_id!r}")


class SqsSharedStreamProducer(BrokerStreamProducer):
    """The stream of an SQS queue."""

    consumer_class = SqsConsumer


def queue_name(queue: str) -> str:
    """Return the name in a queue's name, URL or ARN."""
    return queue.rstrip("/").rpartition("/")[2].rpartition(":")[2]


def _region_of_arn(queue: str) -> str | None:
    return queue.split(":")[3] if queue.startswith("arn:") and queue.count(":") == 5 else None


def _value(attribute: Mapping[str, Any]) -> Any:
    """Return a message attribute's value; a number stays text, since SQS keeps 38 digits."""
    return attribute["BinaryValue"] if "BinaryValue" in attribute else attribute.get("StringValue")


def _moment(milliseconds: str | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(int(milliseconds) / 1000, timezone.utc)

"""`python -m services.send BROKER ADDRESS NAME BODY`: sends a message to a local broker.

BROKER and ADDRESS: sqs and its URL, kafka and its bootstrap address, pubsub and host:port/project, service_bus and its
connection string. NAME is that of the queue or topic.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from services.sqs import SqsServer


def to_sqs(address: str, queue: str, body: str) -> None:
    import boto3

    client = boto3.client(
        "sqs",
        endpoint_url=address,
        region_name=SqsServer.region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.send_message(QueueUrl=client.get_queue_url(QueueName=queue)["QueueUrl"], MessageBody=body)


def to_kafka(address: str, topic: str, body: str) -> None:
    from services.kafka_admin import KafkaAdmin

    async def send() -> None:
        async with KafkaAdmin(address) as admin:
            await admin.send(topic, [body.encode()])

    asyncio.run(send())


def to_pubsub(address: str, topic: str, body: str) -> None:
    from services.pubsub_subscription import PubSubSubscription

    endpoint, _, project = address.partition("/")
    PubSubSubscription(endpoint, project, topic).send([body])


def to_service_bus(address: str, queue: str, body: str) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    with ServiceBusClient.from_connection_string(address) as client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))


SENDERS: dict[str, Callable[[str, str, str], None]] = {
    "sqs": to_sqs,
    "kafka": to_kafka,
    "pubsub": to_pubsub,
    "service_bus": to_service_bus,
}


def main(arguments: list[str]) -> int:
    if len(arguments) != 4 or arguments[0] not in SENDERS:
        print(__doc__, file=sys.stderr)
        return 2
    broker, address, name, body = arguments
    try:
        SENDERS[broker](address, name, body)
    except Exception as error:
        print(f"not sent: {error!r}", file=sys.stderr)
        return 1
    print(f"sent to {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

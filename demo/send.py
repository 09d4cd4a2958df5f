"""`python -m demo.send ADDRESS QUEUE BODY`: sends a message to a queue of the demo's SQS server."""

from __future__ import annotations

import sys

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from services.sqs import SqsServer


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    address, queue, body = arguments
    client = boto3.client(
        "sqs",
        endpoint_url=address,
        region_name=SqsServer.region,
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    try:
        url = client.get_queue_url(QueueName=queue)["QueueUrl"]
        print(client.send_message(QueueUrl=url, MessageBody=body)["MessageId"])
    except (BotoCoreError, ClientError) as error:
        print(f"not sent: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

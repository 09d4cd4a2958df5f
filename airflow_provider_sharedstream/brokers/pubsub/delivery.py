"""From what Pub/Sub sends to what the machine works with."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow_provider_sharedstream.stream.delivery import Delivery

OVERHEAD_BYTES = 1024
"""What Python holds for a message beside its bytes."""


def delivery_of(received: Any, subscription: str, *, size: int, ordered: bool, lease_seconds: float) -> Delivery:
    """Return the delivery of a ReceivedMessage (raw protobuf); its handle is the ack id.

    :param subscription: its name.
    :param size: bytes of the message as it came.
    :param ordered: whether the subscription orders messages: then an ordering key is a lane.
    :param lease_seconds: how long it is ours from now.
    """
    message, attempt = received.message, received.delivery_attempt
    key = message.ordering_key or None
    stamp = message.publish_time
    attributes = {"subscription": subscription, "message_id": message.message_id}
    if key is not None:
        attributes["ordering_key"] = key
    if attempt:
        attributes["delivery_attempt"] = attempt
    return Delivery(
        id=message.message_id,
        body=message.data,
        handle=received.ack_id,
        headers=dict(message.attributes) if message.attributes else {},
        key=key,
        published_at=datetime.fromtimestamp(stamp.seconds + stamp.nanos // 1000 / 1e6, timezone.utc),
        # 0 where the subscription has no dead-letter policy.
        delivery_count=attempt,
        attributes=attributes,
        lane=key if ordered else None,
        size=size + OVERHEAD_BYTES,
        lease_seconds=lease_seconds,
    )

"""Results of acknowledgements, as the unmodified client libraries see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import Subscription

from services.process import wait_until
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.emulator.clients import Make, Open, Subscribe, ack_ids


def test_the_client_library_learns_what_became_of_its_acknowledgements(
    emulator: PubSubEmulator, make: Make, subscribe: Subscribe
) -> None:
    orders = make(exactly_once=True)
    orders.send(["good", "transient", "late"])
    messages = subscribe(orders)
    received = {(message := messages.get(timeout=30)).data.decode(): message for _ in range(3)}
    assert received["good"].ack_with_response().result(timeout=30) is AcknowledgeStatus.SUCCESS

    emulator.faults.fail_ack_ids(1)
    assert received["transient"].ack_with_response().result(timeout=60) is AcknowledgeStatus.SUCCESS

    assert received["late"].nack_with_response().result(timeout=30) is AcknowledgeStatus.SUCCESS
    again = messages.get(timeout=30)
    with pytest.raises(AcknowledgeError) as failure:
        received["late"].ack_with_response().result(timeout=30)
    assert failure.value.error_code is AcknowledgeStatus.INVALID_ACK_ID
    assert again.ack_with_response().result(timeout=30) is AcknowledgeStatus.SUCCESS
    assert emulator.depth(orders.path).total == 0


def test_a_failed_acknowledgement_names_each_ack_id(emulator: PubSubEmulator, make: Make) -> None:
    orders = make(exactly_once=True)
    orders.send(["done", "open", "failing"])
    done, open_, failing = orders.receive()
    orders.acknowledge([done])
    emulator.faults.fail_ack_ids(1)
    with pytest.raises(exceptions.InvalidArgument) as refusal:
        orders.acknowledge([failing, done, open_])
    assert refusal.value.reason == "EXACTLY_ONCE_ACKID_FAILURE"
    assert refusal.value.domain == "pubsub.googleapis.com"
    assert dict(refusal.value.metadata) == {
        failing.ack_id: "TRANSIENT_FAILURE_OTHER",
        done.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID",
    }
    assert emulator.depth(orders.path) == (0, 1), "the one that isn't named was processed"


def test_an_expired_lease_can_be_neither_acknowledged_nor_extended(emulator: PubSubEmulator, make: Make) -> None:
    orders = make(exactly_once=True, ack_deadline_seconds=1)
    orders.send(["expired"])
    received = orders.receive()
    assert wait_until(lambda: emulator.depth(orders.path) == (1, 0), limit_seconds=30)
    settling: list[Callable[[], None]] = [lambda: orders.acknowledge(received), lambda: orders.extend(received, 30)]
    for settle in settling:
        with pytest.raises(exceptions.InvalidArgument) as refusal:
            settle()
        assert list(refusal.value.metadata.values()) == ["PERMANENT_FAILURE_INVALID_ACK_ID"]
    assert emulator.depth(orders.path) == (1, 0)


def test_acknowledging_out_of_order_fails_for_now(make: Make) -> None:
    orders = make(exactly_once=True, ordered=True)
    orders.send(["a0", "a1"], ordering_key="a")
    a0, a1 = orders.receive()
    with pytest.raises(exceptions.InvalidArgument) as refusal:
        orders.acknowledge([a1])
    assert dict(refusal.value.metadata) == {a1.ack_id: "TRANSIENT_FAILURE_UNORDERED_ACK_ID"}
    orders.acknowledge([a0, a1])


async def test_a_stream_confirms_acknowledgements(emulator: PubSubEmulator, make: Make, open_stream: Open) -> None:
    orders = make(exactly_once=True)
    orders.send(["0", "1", "2"])
    stream = await open_stream(orders)
    response = await stream.response()
    assert response.subscription_properties.exactly_once_delivery_enabled
    first, second, third = ack_ids(list(response.received_messages))
    await stream.send(ack_ids=[first], modify_deadline_ack_ids=[second], modify_deadline_seconds=[30])
    response = await stream.response()
    assert response.acknowledge_confirmation.ack_ids == [first]
    assert response.modify_ack_deadline_confirmation.ack_ids == [second]
    emulator.faults.fail_ack_ids(1)
    await stream.send(ack_ids=[third, first])
    response = await stream.response()
    assert response.acknowledge_confirmation.temporary_failed_ack_ids == [third]
    assert response.acknowledge_confirmation.invalid_ack_ids == [first]


async def test_exactly_once_can_be_switched_on_under_an_open_stream(make: Make, open_stream: Open) -> None:
    orders = make()
    stream = await open_stream(orders)
    orders.send(["before"])
    assert not (await stream.response()).subscription_properties.exactly_once_delivery_enabled
    orders.subscriber.update_subscription(
        subscription=Subscription(name=orders.path, enable_exactly_once_delivery=True),
        update_mask=FieldMask(paths=["enable_exactly_once_delivery"]),
    )
    orders.send(["after"])
    assert (await stream.response()).subscription_properties.exactly_once_delivery_enabled

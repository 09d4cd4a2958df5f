"""Messages, leases, retries and dead letters, by unary calls of the unmodified client."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import RetryPolicy, Subscription

from services.process import wait_until
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.emulator.clients import PROJECT, Make


def test_a_message_arrives_whole_and_is_gone_once_acknowledged(emulator: PubSubEmulator, make: Make) -> None:
    orders = make(ordered=True)
    (sent,) = orders.send([b"\x00\xff"], attributes={"kind": "ü"}, ordering_key="k")
    (received,) = orders.receive()
    message = received.message
    assert (message.data, dict(message.attributes), message.ordering_key) == (b"\x00\xff", {"kind": "ü"}, "k")
    assert message.message_id == sent
    assert abs(message.publish_time.timestamp() - time.time()) < 60
    assert received.delivery_attempt == 0
    assert emulator.depth(orders.path) == (0, 1)
    orders.acknowledge([received])
    orders.acknowledge([received])
    assert emulator.depth(orders.path).total == 0


def test_every_subscription_of_a_topic_gets_what_is_published_later(emulator: PubSubEmulator, make: Make) -> None:
    orders = make()
    orders.send(["early"])
    second = f"{orders.path}-second"
    orders.subscriber.create_subscription(name=second, topic=orders.topic)
    orders.send(["late"])
    assert emulator.depth(orders.path).ready == 2
    assert emulator.depth(second).ready == 1


def test_a_lease_that_ends_brings_the_message_back_and_an_extended_one_does_not(
    emulator: PubSubEmulator, make: Make
) -> None:
    orders = make(ack_deadline_seconds=1)
    orders.send(["lost", "kept"])
    lost, kept = orders.receive()
    orders.extend([kept], 60)
    assert wait_until(lambda: emulator.depth(orders.path) == (1, 1), limit_seconds=30)
    (again,) = orders.receive()
    assert again.message.message_id == lost.message.message_id
    assert again.ack_id != lost.ack_id
    orders.acknowledge([lost])
    assert emulator.depth(orders.path) == (0, 2), "an older ack id settles nothing once there is a newer one"
    orders.acknowledge([again, kept])
    assert emulator.depth(orders.path).total == 0


def test_a_late_acknowledgement_counts_while_nobody_else_has_the_message(emulator: PubSubEmulator, make: Make) -> None:
    orders = make(ack_deadline_seconds=1)
    orders.send(["late"])
    received = orders.receive()
    assert wait_until(lambda: emulator.depth(orders.path) == (1, 0), limit_seconds=30)
    orders.acknowledge(received)
    assert emulator.depth(orders.path).total == 0
    assert orders.receive() == []


def test_a_pull_waits_for_a_message(make: Make) -> None:
    orders = make()
    waiting: Future[Any] = Future()
    with grpc.insecure_channel(orders.endpoint) as channel:
        call = channel.unary_unary(
            "/google.pubsub.v1.Subscriber/Pull",
            request_serializer=lambda _: b"\n" + bytes([len(orders.path)]) + orders.path.encode() + b"\x18\x05",
        ).future(None, timeout=30)
        call.add_done_callback(lambda done: waiting.set_result(done.result()))
        orders.send(["in time"])
        assert b"in time" in waiting.result(timeout=30)


def test_a_retry_policy_delays_longer_each_time(make: Make) -> None:
    orders = make()
    policy = RetryPolicy(minimum_backoff=Duration(nanos=500_000_000), maximum_backoff=Duration(seconds=60))
    orders.subscriber.update_subscription(
        subscription=Subscription(name=orders.path, retry_policy=policy), update_mask=FieldMask(paths=["retry_policy"])
    )
    orders.send(["again"])
    received = orders.receive()
    for delay_seconds in (0.5, 1.0):
        refused_at = time.monotonic()
        orders.extend(received, 0)
        received = []
        while not received:
            assert time.monotonic() < refused_at + 30
            time.sleep(0.05)
            received = orders.receive()
        assert time.monotonic() >= refused_at + delay_seconds


def test_what_fails_too_often_goes_to_the_dead_letters(emulator: PubSubEmulator, make: Make) -> None:
    orders = make(dead_letters=True, max_delivery_attempts=5)
    orders.send(["poison"], attributes={"kind": "test"})
    attempts = []
    while received := orders.receive():
        attempts.append(received[0].delivery_attempt)
        orders.extend(received, 0)
    assert attempts == [1, 2, 3, 4, 5]
    assert emulator.depth(orders.path).total == 0
    assert orders.dead_letters is not None
    (dead,) = orders.dead_letters.take()
    assert dead.message.data == b"poison"
    attributes = dict(dead.message.attributes)
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime")
    assert attributes == {
        "kind": "test",
        "CloudPubSubDeadLetterSourceSubscription": "orders",
        "CloudPubSubDeadLetterSourceSubscriptionProject": PROJECT,
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
    }

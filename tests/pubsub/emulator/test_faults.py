"""What the emulator refuses, by itself and because a test says so."""

from __future__ import annotations

import grpc
import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask
from google.pubsub_v1.types import Subscription

from services.process import wait_until
from services.pubsub_subscription import PubSubSubscription
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.emulator.clients import PROJECT, Make, Open, Subscribe, ack_ids, data, refusal


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (grpc.StatusCode.UNIMPLEMENTED, exceptions.MethodNotImplemented),
        (grpc.StatusCode.FAILED_PRECONDITION, exceptions.FailedPrecondition),
        (grpc.StatusCode.PERMISSION_DENIED, exceptions.PermissionDenied),
        (grpc.StatusCode.UNAUTHENTICATED, exceptions.Unauthenticated),
        (grpc.StatusCode.UNAVAILABLE, exceptions.ServiceUnavailable),
    ],
)
async def test_streams_can_be_refused_while_pulls_are_served(
    emulator: PubSubEmulator, make: Make, open_stream: Open, code: grpc.StatusCode, raised: type[Exception]
) -> None:
    orders = make()
    orders.send(["pulled"])
    emulator.faults.refuse("StreamingPull", code, times=1)
    assert type(await refusal(open_stream(orders))) is raised
    assert data(orders.take()) == ["pulled"]
    orders.send(["streamed"])
    assert data(await (await open_stream(orders)).messages(1)) == ["streamed"]
    assert emulator.calls["StreamingPull"] == 2


async def test_open_streams_can_be_ended(emulator: PubSubEmulator, make: Make, open_stream: Open) -> None:
    orders = make()
    stream = await open_stream(orders)
    assert await stream.silent()
    emulator.faults.end_streams(grpc.StatusCode.PERMISSION_DENIED, "Gone.")
    end = await stream.end()
    assert isinstance(end, exceptions.PermissionDenied)
    assert end.message == "Gone."
    stream = await open_stream(orders)
    orders.send(["goes on"])
    assert data(await stream.messages(1)) == ["goes on"]


async def test_a_stream_ends_with_its_subscription(make: Make, open_stream: Open) -> None:
    orders = make()
    stream = await open_stream(orders)
    assert await stream.silent()
    orders.delete()
    assert isinstance(await stream.end(), exceptions.NotFound)
    assert isinstance(await refusal(open_stream(orders)), exceptions.NotFound)


def test_the_client_library_outlives_streams_that_end_all_the_time(
    emulator: PubSubEmulator, make: Make, subscribe: Subscribe
) -> None:
    orders = make()
    emulator.faults.stream_seconds = 0.5
    messages = subscribe(orders)
    for number in range(4):
        orders.send([str(number)])
        message = messages.get(timeout=60)
        assert message.data == str(number).encode()
        message.ack()
        assert wait_until(lambda: emulator.calls["StreamingPull"] > number + 1, limit_seconds=60)  # noqa: B023
    assert wait_until(lambda: emulator.depth(orders.path).total == 0, limit_seconds=30)


@pytest.mark.slow
def test_messages_and_port_outlive_a_restart(emulator: PubSubEmulator, make: Make, subscribe: Subscribe) -> None:
    orders = make()
    messages = subscribe(orders)
    orders.send(["before"])
    messages.get(timeout=30).ack()
    assert wait_until(lambda: emulator.depth(orders.path).total == 0, limit_seconds=30)
    port = emulator.port
    emulator.stop()
    with pytest.raises(exceptions.ServiceUnavailable):
        orders.subscriber.pull(subscription=orders.path, max_messages=1, retry=None, timeout=5)
    emulator.start()
    assert emulator.port == port
    orders.send(["after"])
    assert messages.get(timeout=60).data == b"after"


def test_a_call_can_take_effect_and_its_answer_be_lost(emulator: PubSubEmulator, make: Make) -> None:
    orders = make()
    orders.send(["settled"])
    received = orders.receive()
    emulator.faults.refuse("Acknowledge", grpc.StatusCode.UNAVAILABLE, times=1, applied=True)
    with pytest.raises(exceptions.ServiceUnavailable):
        orders.subscriber.acknowledge(subscription=orders.path, ack_ids=ack_ids(received), retry=None)
    assert emulator.depth(orders.path).total == 0


def test_faults_end_with_heal(emulator: PubSubEmulator, make: Make) -> None:
    orders = make()
    emulator.faults.refuse("Publish", grpc.StatusCode.PERMISSION_DENIED)
    for _ in range(2):
        with pytest.raises(exceptions.PermissionDenied):
            orders.send(["refused"])
    emulator.faults.heal()
    assert len(orders.send(["accepted"])) == 1


def test_the_limits_of_the_api_are_kept(make: Make) -> None:
    orders = make()
    orders.send(["x"])
    (received,) = orders.receive()
    with pytest.raises(exceptions.InvalidArgument, match="524288"):
        orders.subscriber.acknowledge(subscription=orders.path, ack_ids=[received.ack_id] * 3000)
    with pytest.raises(exceptions.InvalidArgument, match="601"):
        orders.extend([received], 601)
    with pytest.raises(exceptions.InvalidArgument, match="malformed"):
        orders.subscriber.acknowledge(subscription=orders.path, ack_ids=["malformed"])
    with pytest.raises(exceptions.InvalidArgument):
        orders.subscriber.update_subscription(
            subscription=Subscription(name=orders.path, enable_message_ordering=True),
            update_mask=FieldMask(paths=["enable_message_ordering"]),
        )
    with pytest.raises(exceptions.AlreadyExists):
        orders.create()
    with pytest.raises(exceptions.NotFound):
        PubSubSubscription(orders.endpoint, PROJECT, "missing").send(["x"])

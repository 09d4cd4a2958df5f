"""Who may not, and what isn't there: refused the way the service refuses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
)

from tests.emulators.service_bus import ServiceBusEmulator
from tests.emulators.service_bus.tokens import ALL_RIGHTS
from tests.service_bus.emulator.tools import eventually, receive_one, send, text


def connect(connection_string: str) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0)


def reasons(error: BaseException) -> str:
    """The SDK keeps what the service said to a token in the cause of its own error."""
    return f"{error} {error.inner_exception}" if isinstance(error, ServiceBusError) else str(error)


async def open_and_close(receiver: ServiceBusReceiver) -> None:
    async with receiver:
        pass


@pytest.mark.parametrize(("key_name", "key"), [("RootManageSharedAccessKey", "wrong"), ("NoSuchPolicy", "x")])
async def test_a_wrong_key_is_refused(emulator: ServiceBusEmulator, queue: str, key_name: str, key: str) -> None:
    async with connect(emulator.connection_string(key_name, key)) as client:
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await open_and_close(client.get_queue_receiver(queue))
    assert "Status code: 401" in reasons(caught.value)
    assert "InvalidSignature" in reasons(caught.value)


def signature(emulator: ServiceBusEmulator, path: str, *, lasts_seconds: float) -> str:
    """A connection string with a signature in the place of a key."""
    from azure.servicebus._pyamqp.utils import generate_sas_token

    endpoint = f"sb://127.0.0.1:{emulator.port}"
    name, key = "RootManageSharedAccessKey", "SAS_KEY_VALUE"
    until = time.time() + lasts_seconds
    token = generate_sas_token(f"{endpoint}/{path}", name, key, until)  # type: ignore[no-untyped-call]
    return f"Endpoint={endpoint};SharedAccessSignature={token};UseDevelopmentEmulator=true"


async def test_a_signature_is_good_for_its_entity_alone(
    emulator: ServiceBusEmulator, make_queue: Callable[..., str]
) -> None:
    mine, other = make_queue(), make_queue()
    async with connect(signature(emulator, mine, lasts_seconds=600)) as client:
        await send(client, mine, "a")
        async with client.get_queue_receiver(mine) as receiver:
            assert text(await receive_one(receiver)) == "a"
        await open_and_close(client.get_queue_receiver(mine, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await open_and_close(client.get_queue_receiver(other))
    assert "another resource" in reasons(caught.value)


async def test_an_expired_signature_is_refused(emulator: ServiceBusEmulator, queue: str) -> None:
    async with connect(signature(emulator, queue, lasts_seconds=-10)) as client:
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await open_and_close(client.get_queue_receiver(queue))
    assert "Status code: 401" in reasons(caught.value)
    assert "ExpiredToken" in reasons(caught.value)


async def test_a_signature_that_runs_out_detaches_its_links(emulator: ServiceBusEmulator, queue: str) -> None:
    async with connect(signature(emulator, queue, lasts_seconds=6)) as client:
        before = emulator.statistics().receivers
        async with client.get_queue_receiver(queue):
            assert emulator.statistics().receivers == before + 1
            assert await eventually(lambda: emulator.statistics().receivers == before)


@pytest.mark.parametrize("right", ["Send", "Listen"])
async def test_a_key_gives_its_own_rights_only(emulator: ServiceBusEmulator, queue: str, right: str) -> None:
    emulator.add_key("Limited", "a secret", [right])
    async with connect(emulator.connection_string("Limited")) as client:
        if right == "Listen":
            await open_and_close(client.get_queue_receiver(queue))
            with pytest.raises(ServiceBusAuthorizationError, match=r"'Send' claim\(s\) are required"):
                await send(client, queue, "a")
        else:
            await send(client, queue, "a")
            with pytest.raises(ServiceBusAuthorizationError, match=r"'Listen' claim\(s\) are required"):
                await open_and_close(client.get_queue_receiver(queue))


class Credential:
    """What azure-identity's credentials are to the SDK."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.scopes: list[str] = []

    async def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.scopes += scopes
        return AccessToken(self.token, int(time.time()) + 3600)

    async def close(self) -> None: ...

    async def __aenter__(self) -> Credential:
        return self

    async def __aexit__(self, *exc_info: object) -> None: ...


async def test_a_directory_token_is_accepted_when_it_is_known(emulator: ServiceBusEmulator, queue: str) -> None:
    emulator.add_bearer("known", ALL_RIGHTS)
    namespace = f"127.0.0.1:{emulator.port}"
    known, unknown = Credential("known"), Credential("unknown")
    async with ServiceBusClient(namespace, known, use_tls=False, retry_total=0) as client:
        await send(client, queue, "a")
        async with client.get_queue_receiver(queue) as receiver:
            assert text(await receive_one(receiver)) == "a"
    assert set(known.scopes) == {"https://servicebus.azure.net//.default"}
    async with ServiceBusClient(namespace, unknown, use_tls=False, retry_total=0) as client:
        with pytest.raises(ServiceBusAuthenticationError):
            await open_and_close(client.get_queue_receiver(queue))


async def test_a_missing_entity_is_said_to_be_missing(client: ServiceBusClient, emulator: ServiceBusEmulator) -> None:
    emulator.create_topic("topic-without-subscriptions")
    for receiver in (
        client.get_queue_receiver("missing"),
        client.get_queue_receiver("missing", sub_queue=ServiceBusSubQueue.DEAD_LETTER),
        client.get_subscription_receiver("missing", "missing"),
        client.get_subscription_receiver("topic-without-subscriptions", "missing"),
    ):
        # The token comes first, and its refusal has no error of its own in the SDK.
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            await open_and_close(receiver)
        assert "Status code: 404" in reasons(caught.value)
        assert "could not be found" in reasons(caught.value)
    with pytest.raises(ServiceBusAuthenticationError):
        await send(client, "missing", "a")


async def test_an_entity_that_is_deleted_takes_its_links_along(
    client: ServiceBusClient, queue: str, emulator: ServiceBusEmulator
) -> None:
    async with client.get_queue_receiver(queue) as receiver:
        emulator.delete(queue)
        with pytest.raises(MessagingEntityNotFoundError, match="could not be found"):
            await receiver.receive_messages(max_message_count=1, max_wait_time=15)
    with pytest.raises(ServiceBusAuthenticationError):
        await open_and_close(client.get_queue_receiver(queue))


async def test_a_topic_cannot_be_received_from(client: ServiceBusClient, emulator: ServiceBusEmulator) -> None:
    emulator.create_topic("a-topic")
    with pytest.raises(ServiceBusError, match="is a topic"):
        await open_and_close(client.get_queue_receiver("a-topic"))
    async with client.get_topic_sender("a-topic") as sender:
        await sender.send_messages(ServiceBusMessage("for nobody"))


async def test_nothing_can_be_sent_to_a_dead_letter_queue(client: ServiceBusClient, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="is a dead-letter queue"):
        await send(client, f"{queue}/$DeadLetterQueue", "a")


async def test_an_entity_with_sessions_wants_a_session_receiver(client: ServiceBusClient, session_queue: str) -> None:
    with pytest.raises(ServiceBusError, match="entity that requires sessions to create a non-sessionful") as caught:
        await open_and_close(client.get_queue_receiver(session_queue))
    assert "amqp:not-allowed" in str(caught.value)


@pytest.mark.parametrize("session", ["red", NEXT_AVAILABLE_SESSION])
async def test_an_entity_without_sessions_wants_none(client: ServiceBusClient, queue: str, session: object) -> None:
    with pytest.raises(ServiceBusError, match="sessionful message receiver cannot be created") as caught:
        await open_and_close(client.get_queue_receiver(queue, session_id=session))  # type: ignore[arg-type]
    assert "amqp:not-allowed" in str(caught.value)


async def test_a_receiver_that_waits_for_a_session_can_be_detached(
    client: ServiceBusClient, session_queue: str, emulator: ServiceBusEmulator
) -> None:
    waiting = client.get_queue_receiver(session_queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=30)
    opening = asyncio.create_task(waiting.__aenter__())
    assert await eventually(lambda: emulator.detach_links(session_queue) == 1)
    with pytest.raises(ServiceBusError, match="IdleTimerExpired"):
        await opening


async def test_entities_are_made_once(emulator: ServiceBusEmulator, queue: str) -> None:
    with pytest.raises(RuntimeError, match="already exists"):
        emulator.create_queue(queue.upper())
    with pytest.raises(RuntimeError, match="could not be found"):
        emulator.counts("missing")

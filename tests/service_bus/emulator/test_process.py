"""The same emulator as a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.aio import ServiceBusClient

from services.process import LocalProcess, free_port, listening, wait_until
from tests.emulators.service_bus import QueueOptions, RemoteControl
from tests.service_bus.emulator.tools import receive_one, send, text


async def test_it_serves_and_takes_orders(tmp_path: Path) -> None:
    port, control_port = free_port(), free_port()
    command = [sys.executable, "-m", "tests.emulators.service_bus", "--port", str(port)]
    command += ["--control-port", str(control_port), "--queue", "plain", "--session-queue", "in-order"]
    command += ["--subscription", "topic/everything", "--lock-seconds", "2"]
    process = LocalProcess(
        "emulator", command, log_file=tmp_path / "log", ready=lambda: listening(port) and listening(control_port)
    )
    with process:
        control = RemoteControl(port, control_port)
        async with ServiceBusClient.from_connection_string(control.connection_string()) as client:
            await send(client, "plain", "a")
            await send(client, "in-order", "b", session_id="red")
            async with client.get_queue_receiver("plain") as receiver:
                assert text(await receive_one(receiver)) == "a"
                assert (await receive_one(receiver)).delivery_count == 1
                assert control.expire_locks("plain") == 1
            async with client.get_queue_receiver("in-order", session_id=NEXT_AVAILABLE_SESSION) as receiver:
                assert text(await receive_one(receiver)) == "b"
            async with client.get_subscription_receiver("topic", "everything"):
                assert control.statistics().receivers == 1

            control.create_queue("new", QueueOptions(requires_session=True))
            assert control.create_subscription("topic", "more") == "topic/Subscriptions/more"
            assert control.counts("topic/subscriptions/MORE").active == 0
            control.add_key("SendOnly", "secret", ["Send"])
            async with ServiceBusClient.from_connection_string(control.connection_string("SendOnly")) as sender:
                await send(sender, "new", "c", session_id="blue")
            assert control.counts("new").active == 1
            with pytest.raises(RuntimeError, match="already exists"):
                control.create_queue("new")

        control.go_down()
        assert not listening(port)
        control.come_up()
        assert listening(port)
        process.terminate()
        assert wait_until(lambda: not process.running, limit_seconds=20)
    assert "Traceback" not in process.tail(1000)

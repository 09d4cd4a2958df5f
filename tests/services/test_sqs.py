from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from botocore.exceptions import BotoCoreError

from services.proxy import SqsProxy
from services.sqs import SqsServer


@pytest.fixture(name="server", scope="module")
def fixture_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqsServer]:
    with SqsServer(tmp_path_factory.mktemp("sqs")) as server:
        yield server


def test_it_says_what_was_taken(server: SqsServer) -> None:
    assert server.taken.startswith(("environment address", "Docker image", "local process: PyPI ministack"))
    assert server.real


def test_messages_come_back_whole_and_are_counted(server: SqsServer) -> None:
    queue = server.create_queue("whole")
    sent = queue.send((f"body {n}" for n in range(23)), attributes={"kind": {"DataType": "String", "StringValue": "ü"}})
    assert len(set(sent)) == 23
    assert queue.depth() == (23, 0, 0)
    (first,) = queue.receive(1)
    assert queue.depth() == (22, 1, 0)
    assert first["MessageAttributes"]["kind"]["StringValue"] == "ü"
    queue.delete([first])
    taken = [first, *queue.take()]
    assert sorted(message["MessageId"] for message in taken) == sorted(sent)
    assert {message["Body"] for message in taken} == {f"body {n}" for n in range(23)}
    assert queue.depth().total == 0


def test_a_message_received_too_often_goes_to_the_dead_letters(server: SqsServer) -> None:
    queue = server.create_queue("redrive", max_receives=2, visibility_timeout=0)
    queue.send(["poison"])
    counts = [queue.receive()[0]["Attributes"]["ApproximateReceiveCount"] for _ in range(2)]
    assert counts == ["1", "2"]
    assert queue.receive() == []
    assert queue.dead_letters is not None
    assert [message["Body"] for message in queue.dead_letters.take()] == ["poison"]


def test_a_fifo_group_waits_for_its_head(server: SqsServer) -> None:
    queue = server.create_queue("lanes.fifo")
    queue.send(["a1", "a2"], group="a")
    queue.send(["b1"], group="b")
    (head,) = queue.receive(1)
    assert [message["Body"] for message in queue.receive()] == ["b1"]
    queue.delete([head])
    assert [message["Body"] for message in queue.receive()] == ["a2"]


def test_calls_through_the_proxy_are_counted_and_can_be_cut(server: SqsServer) -> None:
    queue = server.create_queue("counted")
    with SqsProxy(server.port) as proxy:
        client = server.client(proxy.endpoint_url)
        for _ in range(3):
            client.receive_message(QueueUrl=queue.url)
        client.send_message(QueueUrl=queue.url, MessageBody="x")
        assert proxy.calls == {"ReceiveMessage": 3, "SendMessage": 1}
        proxy.cut()
        with pytest.raises(BotoCoreError):
            client.receive_message(QueueUrl=queue.url)
        proxy.heal()
        assert len(client.receive_message(QueueUrl=queue.url)["Messages"]) == 1


def test_a_restart_keeps_queues_and_messages(tmp_path: Path) -> None:
    with SqsServer(tmp_path) as server:
        if server.taken.startswith("environment"):
            with pytest.raises(RuntimeError, match="can't be restarted"):
                server.restart()
            return
        queue = server.create_queue("kept.fifo")
        queue.send(["one", "two"], group="g")
        server.restart()
        assert [message["Body"] for message in queue.take()] == ["one", "two"]

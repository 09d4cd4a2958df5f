from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
import time
from collections.abc import Iterator

import pytest

from services.process import wait_until
from services.proxy import SqsProxy, TcpProxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        with contextlib.suppress(OSError):
            while piece := self.request.recv(65536):
                self.request.sendall(piece)


@pytest.fixture(name="echo_port")
def fixture_echo_port() -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield int(server.server_address[1])
        server.shutdown()


def connect(proxy: TcpProxy) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"
    return client


def test_cut_drops_and_refuses_and_heal_brings_the_same_port_back(echo_port: int) -> None:
    with TcpProxy(echo_port) as proxy:
        client = connect(proxy)
        assert (proxy.opened, proxy.open, proxy.bytes_up, proxy.bytes_down) == (1, 1, 5, 5)
        proxy.cut()
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(100) == b""
        assert proxy.open == 0
        with pytest.raises(ConnectionRefusedError):
            connect(proxy)
        proxy.heal()
        connect(proxy).close()
        assert wait_until(lambda: proxy.open == 0, limit_seconds=10)
        assert proxy.opened == 2
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    proxy.stop()


def test_stall_accepts_but_passes_nothing_until_healed(echo_port: int) -> None:
    with TcpProxy(echo_port) as proxy:
        proxy.stall()
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=0.3)
        client.sendall(b"late")
        with pytest.raises(TimeoutError):
            client.recv(100)
        proxy.heal()
        client.settimeout(10)
        assert client.recv(100) == b"late"
        client.close()


def test_delay_holds_each_piece_back(echo_port: int) -> None:
    with TcpProxy(echo_port) as proxy:
        connect(proxy).close()
        proxy.delay_seconds = 0.2
        started = time.monotonic()
        connect(proxy).close()
        assert time.monotonic() - started >= 0.4


def test_a_server_that_is_down_closes_the_connection() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with TcpProxy(nobody.getsockname()[1]) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(100) == b""


def test_requests_are_counted_by_action_wherever_the_pieces_break(echo_port: int) -> None:
    body = b'{"MessageBody": "X-Amz-Target: AmazonSQS.PurgeQueue\r\n\r\n"}'
    head = b"POST / HTTP/1.1\r\nHost: x\r\nx-amz-target: AmazonSQS.%s\r\nContent-Length: %d\r\n\r\n"
    stream = head % (b"SendMessage", len(body)) + body + head % (b"ReceiveMessage", 2) + b"{}"
    stream += b"GET /_ministack/health HTTP/1.1\r\nHost: x\r\n\r\n" + head % (b"ReceiveMessage", 0)
    for size in (1, 7, 64, len(stream)):
        with SqsProxy(echo_port) as proxy:
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for start in range(0, len(stream), size):
                    client.sendall(stream[start : start + size])
                assert wait_until(lambda: proxy.bytes_up == len(stream), limit_seconds=10)
            assert proxy.calls == {"SendMessage": 1, "ReceiveMessage": 2}

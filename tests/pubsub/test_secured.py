"""As with the service itself: a regional endpoint, TLS, and a token with every call."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from services.kafka_certificates import Certificates
from services.proxy import TcpProxy
from tests.emulators.pubsub import PubSubEmulator
from tests.pubsub.conftest import made
from tests.pubsub.relay import Relay
from tests.pubsub.tokens import TokenServer


@contextmanager
def with_tls(port: int, certificates: Certificates) -> Iterator[int]:
    """The port of 127.0.0.1 at which what listens on `port` speaks TLS."""
    issued = certificates.issue("localhost")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    context.set_alpn_protocols(["h2"])
    loop = asyncio.new_event_loop()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer), return_exceptions=True)

    server = loop.run_until_complete(asyncio.start_server(accept, "127.0.0.1", 0, ssl=context))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0.1))
        loop.close()


class Secured:
    """An emulator behind TLS, a network that can be cut, a token endpoint, and an adapter in a process of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        certificates = Certificates(folder / "certificates")
        self.tokens = stack.enter_context(TokenServer())
        self.emulator = stack.enter_context(PubSubEmulator())
        self.relay = stack.enter_context(Relay(self.emulator.endpoint))
        self.proxy = stack.enter_context(TcpProxy(stack.enter_context(with_tls(self.relay.port, certificates))))
        self.orders = made(f"127.0.0.1:{self.relay.port}", "keys-project", "orders", dead_letters=False)
        stack.callback(self.orders.close)
        connection = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": self.tokens.key()}}
        self._environment = {
            **{name: value for name, value in os.environ.items() if name != "PUBSUB_EMULATOR_HOST"},
            "AIRFLOW_CONN_SECURED": json.dumps(connection),
            "AIRFLOW_HOME": str(folder / "airflow"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificates.ca_file),
        }
        self._stack = stack
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        given = {
            "project_id": None,
            "subscription": "orders",
            "gcp_conn_id": "secured",
            "endpoint": f"localhost:{self.proxy.port}",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pubsub.secured", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            text=True,
        )
        self._stack.callback(self._process.communicate)
        self._stack.callback(self._process.kill)

    def tell(self, word: str) -> dict[str, Any]:
        """What it says to that."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        # Airflow logs there too.
        line = next((line for line in self._process.stdout if line.startswith("{")), None)
        assert line is not None, "it has ended"
        said: dict[str, Any] = json.loads(line)
        return said


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with ExitStack() as stack:
        yield Secured(tmp_path, stack)


def test_a_regional_endpoint_with_credentials_that_run_out(secured: Secured) -> None:
    # So short that each call takes a new one.
    secured.tokens.seconds = 1
    secured.orders.send(["first", "second"])
    secured.start()
    assert secured.tell("accept") == {"body": "first", "failures": 0}
    assert len(secured.relay.authorizations) > 1
    assert all(one.startswith("Bearer token-") for one in secured.relay.authorizations)
    secured.tokens.refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
    said = secured.tell("accept")
    # gRPC says that the server is unavailable.
    assert said["kind"] == "SourceUnavailable"
    assert "gcp_conn_id='secured': Google gives no token for these credentials" in said["text"]
    assert "Invalid JWT Signature" in said["text"]
    assert said["transient"] is False
    assert secured.emulator.depth(secured.orders.path).total == 1


@pytest.mark.slow
def test_a_connection_on_which_nothing_comes_any_more_is_given_up(secured: Secured) -> None:
    secured.orders.send(["first"])
    secured.start()
    assert secured.tell("accept") == {"body": "first", "failures": 0}
    secured.proxy.stall()
    said = secured.tell("receive")
    assert said["transient"] is True, said

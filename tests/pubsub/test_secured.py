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
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.kafka_certificates import Certificates
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


def answer(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    # Airflow logs there too.
    line = next((line for line in process.stdout if line.startswith("{")), None)
    assert line is not None, "it has ended"
    said: dict[str, Any] = json.loads(line)
    return said


def test_a_regional_endpoint_with_credentials_that_run_out(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path / "certificates")
    with (
        TokenServer() as tokens,
        PubSubEmulator() as emulator,
        Relay(emulator.endpoint) as relay,
        with_tls(relay.port, certificates) as port,
    ):
        # So short that each call takes a new one.
        tokens.seconds = 1
        orders = made(f"127.0.0.1:{relay.port}", "keys-project", "orders", dead_letters=False)
        orders.send(["first", "second"])
        connection = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": tokens.key()}}
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PUBSUB_EMULATOR_HOST"},
            "AIRFLOW_CONN_SECURED": json.dumps(connection),
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(certificates.ca_file),
        }
        given = {
            "project_id": None,
            "subscription": "orders",
            "gcp_conn_id": "secured",
            "endpoint": f"localhost:{port}",
        }
        with subprocess.Popen(
            [sys.executable, "-m", "tests.pubsub.secured", json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        ) as process:
            try:
                assert answer(process) == {"body": "first", "failures": 0}
                assert relay.authorizations
                assert all(one.startswith("Bearer token-") for one in relay.authorizations)
                tokens.refusal = {"error": "invalid_grant", "error_description": "Invalid JWT Signature."}
                process.stdin.write("\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                said = answer(process)
                # gRPC says that the server is unavailable.
                assert said["kind"] == "SourceUnavailable"
                assert "gcp_conn_id='secured': Google gives no token for these credentials" in said["text"]
                assert "Invalid JWT Signature" in said["text"]
                assert said["transient"] is False
            finally:
                process.kill()
        orders.close()
        assert emulator.depth("projects/keys-project/subscriptions/orders").total == 1

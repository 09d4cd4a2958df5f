"""One SQS server for all tests of this folder, behind a proxy that can be cut."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from services.proxy import SqsProxy
from services.sqs import SqsServer
from services.sqs_queue import SqsQueue

NUMBERS = itertools.count()


class Sqs:
    """The server, the proxy before it, and the Airflow connection that leads through the proxy."""

    conn_id = "aws_tests"

    def __init__(self, server: SqsServer, proxy: SqsProxy) -> None:
        self.server = server
        self.proxy = proxy

    def queue(
        self,
        *,
        fifo: bool = False,
        dead_letters: bool = True,
        visibility_timeout: int = 30,
        max_receives: int = 1000,
    ) -> SqsQueue:
        """A fresh queue."""
        name = f"q{next(NUMBERS)}-{os.getpid()}{'.fifo' if fifo else ''}"
        return self.server.create_queue(
            name, dead_letters=dead_letters, visibility_timeout=visibility_timeout, max_receives=max_receives
        )


@pytest.fixture(scope="session")
def sqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sqs]:
    with SqsServer(tmp_path_factory.mktemp("sqs")) as server, SqsProxy(server.port) as proxy:
        os.environ[f"AIRFLOW_CONN_{Sqs.conn_id.upper()}"] = server.connection(proxy.endpoint_url)
        print(f"\nSQS tests run on {server.taken}")
        yield Sqs(server, proxy)


@pytest.fixture(autouse=True)
def _short_join_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__SHAREDSTREAM__JOIN_GRACE_SECONDS", "0.5")

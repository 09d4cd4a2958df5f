"""`python -m services [sqs] [kafka] [pubsub] [service_bus]`: local brokers for Dags of one's own, until Ctrl-C.

Without names it starts all that run here. Each has `orders`: a queue, or a topic with what reads from it. What goes
into the environment of Airflow is printed as `export` lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from services.kafka import KafkaServer
from services.process import ServiceUnavailable
from services.pubsub import PubSubServer
from services.service_bus import ServiceBusServer
from services.sqs import CHECKOUT, SqsServer

NAME = "orders"


class Running(NamedTuple):
    """What somebody needs who uses a broker.

    :param what: one sentence on it.
    :param environment: variables for Airflow.
    :param address: as `services.send` takes it.
    """

    what: str
    environment: Mapping[str, str]
    address: str


def sqs(folder: Path, stack: ExitStack) -> Running:
    server = stack.enter_context(SqsServer(folder))
    server.create_queue(NAME)
    what = f"{server.taken}; sqs_queue={NAME!r}"
    return Running(what, {"AIRFLOW_CONN_AWS_DEFAULT": server.connection()}, server.endpoint_url)


def kafka(folder: Path, stack: ExitStack) -> Running:
    server = stack.enter_context(KafkaServer(folder))

    async def create() -> None:
        async with server.admin() as admin:
            await admin.create_topic(NAME)

    asyncio.run(create())
    what = f"{server.taken}; topics={NAME!r}, and a group_id"
    return Running(what, {"AIRFLOW_CONN_KAFKA_DEFAULT": server.connection()}, server.bootstrap)


def pubsub(folder: Path, stack: ExitStack) -> Running:
    server = stack.enter_context(PubSubServer(folder))
    server.create_subscription(NAME).close()
    environment = {
        "PUBSUB_EMULATOR_HOST": server.endpoint,
        "AIRFLOW_CONN_GOOGLE_CLOUD_DEFAULT": server.connection(),
    }
    what = f"{server.taken}; project_id=None, subscription={NAME!r}"
    return Running(what, environment, f"{server.endpoint}/{server.project}")


def service_bus(folder: Path, stack: ExitStack) -> Running:
    server = stack.enter_context(ServiceBusServer(folder))
    server.create_queue(NAME)
    environment = {"AIRFLOW_CONN_AZURE_SERVICE_BUS_DEFAULT": server.connection()}
    return Running(f"{server.taken}; queue_name={NAME!r}", environment, server.connection_string)


BROKERS: dict[str, Callable[[Path, ExitStack], Running]] = {
    "sqs": sqs,
    "kafka": kafka,
    "pubsub": pubsub,
    "service_bus": service_bus,
}


def main(names: list[str]) -> int:
    if not set(names) <= BROKERS.keys():
        print(__doc__, file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharedstream-brokers-")))
        started = [name for name in names or BROKERS if _start(name, folder / name, stack)]
        if not started:
            return 1
        print(f"# {', '.join(started)} until Ctrl-C", flush=True)
        signal.pause()
    print("# nothing is left running")
    return 0


def _start(name: str, folder: Path, stack: ExitStack) -> bool:
    try:
        running = BROKERS[name](folder, stack)
    except ServiceUnavailable as why:
        print(f"# {name} can't be had here: {why}\n", flush=True)
        return False
    print(f"# {name}: {running.what}")
    for variable, value in running.environment.items():
        print(f"export {variable}={shlex.quote(value)}")
    send = shlex.join((sys.executable, "-m", "services.send", name, running.address, NAME, '{"region": "eu"}'))
    print(f"# send: (cd {shlex.quote(str(CHECKOUT))} && {send})\n", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

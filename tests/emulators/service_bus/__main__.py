"""``python -m tests.emulators.service_bus --port 5672 --queue orders``: the emulator as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal

from tests.emulators.service_bus.control import ROOT_KEY, ROOT_KEY_NAME
from tests.emulators.service_bus.orders import Orders, listen_for_orders
from tests.emulators.service_bus.server import Server
from tests.emulators.service_bus.stored import QueueOptions
from tests.emulators.service_bus.tokens import Key


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.emulators.service_bus", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="for AMQP, on 127.0.0.1")
    parser.add_argument("--control-port", type=int, help="for orders, as RemoteControl sends them")
    parser.add_argument("--queue", action="append", default=[], metavar="NAME")
    parser.add_argument("--session-queue", action="append", default=[], metavar="NAME")
    parser.add_argument("--subscription", action="append", default=[], metavar="TOPIC/NAME")
    parser.add_argument("--lock-seconds", type=float, default=60.0)
    parser.add_argument("--max-delivery-count", type=int, default=10)
    return parser.parse_args()


async def serve(arguments: argparse.Namespace) -> None:
    server = Server(arguments.port, {ROOT_KEY_NAME: Key(ROOT_KEY)})
    namespace = server.broker.namespace
    plain = QueueOptions(arguments.lock_seconds, arguments.max_delivery_count)
    for name in arguments.queue:
        namespace.create_queue(name, plain)
    for name in arguments.session_queue:
        namespace.create_queue(name, QueueOptions(plain.lock_seconds, plain.max_delivery_count, requires_session=True))
    for path in arguments.subscription:
        topic, _, name = path.partition("/")
        namespace.create_subscription(topic, name, plain)

    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    await server.start()
    if arguments.control_port is not None:
        await listen_for_orders(Orders(server), arguments.control_port)
    logging.getLogger(__name__).info("listening on 127.0.0.1:%s", server.port)
    await stopped.wait()
    await server.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(serve(parse()))

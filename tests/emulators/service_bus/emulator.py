"""The emulator inside this process, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

from tests.emulators.service_bus.control import ROOT_KEY, ROOT_KEY_NAME, Control
from tests.emulators.service_bus.orders import Orders
from tests.emulators.service_bus.server import Server
from tests.emulators.service_bus.tokens import Key

if TYPE_CHECKING:
    from typing_extensions import Self

ORDER_SECONDS = 30.0


class ServiceBusEmulator(Control):
    """Started and stopped with ``with``, or by `start` and `stop`; once only.

    :param port: 0: a free one, `port` tells which once it is started.
    """

    def __init__(self, port: int = 0) -> None:
        super().__init__(port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="service-bus-emulator", daemon=True)
        self._server = Server(port, {ROOT_KEY_NAME: Key(ROOT_KEY)})
        self._orders = Orders(self._server)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Raises OSError when the port is taken."""
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(ORDER_SECONDS)
        except OSError:
            self.stop()
            raise
        self.port = self._server.port

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(ORDER_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def order(self, name: str, /, **arguments: Any) -> Any:
        carrying_out = self._orders.carry_out(name, arguments)
        return asyncio.run_coroutine_threadsafe(carrying_out, self._loop).result(ORDER_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

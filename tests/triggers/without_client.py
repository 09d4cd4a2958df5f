"""`python -m tests.triggers.without_client CLASS ARGUMENTS HIDDEN...`: runs a trigger where packages are not installed.

It ends with the first line that says why nothing is received; what is logged goes to stdout.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Airflow itself needs some of what is hidden.
import airflow.sdk
import airflow.triggers.shared_stream  # noqa: F401

SAID = ("next try in", "is held, no message is taken")
MORE_SECONDS = 1.0
"""In which a second line for the same trouble would come."""


class Hidden(MetaPathFinder):
    """Stands before all other finders, and finds nothing of some packages, whoever imports them."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        for name in [name for name in sys.modules if self._hides(name)]:
            del sys.modules[name]

    def _hides(self, name: str) -> bool:
        return any(name == package or name.startswith(f"{package}.") for package in self._packages)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self._hides(fullname):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if any(words in record.getMessage() for words in SAID):
            self.said.set()


async def main(path: str, arguments: str, *hidden: str) -> None:
    sys.meta_path.insert(0, Hidden(hidden))
    module, _, name = path.rpartition(".")
    trigger = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    listener = Listener()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, force=True)
    logging.getLogger().addHandler(listener)

    async def receive() -> None:
        async for event in trigger.run():
            print(event)

    running = asyncio.create_task(receive())
    await listener.said.wait()
    await asyncio.sleep(MORE_SECONDS)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

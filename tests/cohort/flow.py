"""Messages that flow, and who has to see which of them."""

from __future__ import annotations

import json
import threading
import time

from typing_extensions import Self

from services.sqs_queue import SqsQueue


class Flow:
    """Messages that are sent all the time, numbered; a context manager.

    :param queues: where to, ten to each in turn.
    :param per_second: how many.
    :param least: so many are sent before it ends, however soon that is.
    """

    def __init__(self, *queues: SqsQueue, per_second: float = 60.0, least: int = 3000) -> None:
        self.queues = queues
        self.sent = 0
        """What is sent from now on has this number or a higher one."""
        self.least = least
        self._per_second = per_second
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.least = 0
        self._stop.set()
        self._thread.join()
        if kind is None and self._error is not None:
            raise self._error

    def goes_to(self, number: int) -> SqsQueue:
        return self.queues[number // 10 % len(self.queues)]

    def _run(self) -> None:
        try:
            while not (self._stop.is_set() and self.sent >= self.least):
                began = time.monotonic()
                numbers = range(self.sent, self.sent + 10)
                self.sent += 10
                self.goes_to(numbers[0]).send([json.dumps({"n": n}) for n in numbers])
                time.sleep(max(0.0, 10 / self._per_second - (time.monotonic() - began)))
        except BaseException as error:
            self._error = error


class Watcher:
    """A watcher as its Dag file declares it.

    :param name: of its Dag and its asset.
    :param queue: what it listens to.
    """

    def __init__(self, name: str, queue: SqsQueue) -> None:
        self.name = name
        self.queue = queue
        self.owed: set[int] = set()
        """Numbers of the messages that it has to see."""
        self._owed_from: int | None = None

    def listens(self, flow: Flow) -> None:
        """From now on it has to see everything."""
        self._owed_from = flow.sent

    def owed_below(self, flow: Flow, mark: int) -> set[int]:
        """What of the numbers below `mark` it has to see."""
        numbers = range(mark if self._owed_from is None else self._owed_from, mark)
        return self.owed | {n for n in numbers if flow.goes_to(n) is self.queue}

    def ends(self, flow: Flow, mark: int) -> None:
        """From number `mark` on it has to see nothing."""
        self.owed = self.owed_below(flow, mark)
        self._owed_from = None

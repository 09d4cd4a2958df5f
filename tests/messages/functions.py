"""Users' functions, for the tests."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import Any

from airflow_provider_sharedstream.messages import Message, RejectMessage

release = threading.Event()
"""Set to let the calls that hang go on."""
running: Counter[str] = Counter()
most: Counter[str] = Counter()
called: list[Any] = []


def decide(message: Message) -> Any:
    match message.body:
        case "emit":
            return {"made": message.id}
        case "as it is":
            return message.body
        case "skip":
            return None
        case "refuse":
            raise RejectMessage("no order number")
        case "raise":
            raise KeyError("order")
        case "exit":
            raise SystemExit(3)
        case "stop":
            raise StopIteration
        case "cancel":
            raise asyncio.CancelledError
        case "bytes":
            return {"a": [b"x"]}
        case "tuple":
            return (1, 2)
        case "message":
            return message.replace(body="new", headers={"h": b"x"}, attributes={"a": 1})
        case "bad str":
            raise Awkward
    return message.body


class Awkward(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def by_key(message: Message) -> Any:
    return decide(message.replace(body=message.attributes["s3"]["key"]))


async def decide_async(message: Message) -> Any:
    await asyncio.sleep(0)
    return decide(message)


class Callable:
    async def __call__(self, message: Message) -> Any:
        return decide(message)

    @staticmethod
    def method(message: Message) -> Any:
        return decide(message)


an_instance = Callable()


def returns_awaitable(message: Message) -> Any:
    return decide_async(message)


def hang(message: Message) -> Any:
    called.append(message.id)
    if message.body == "hang":
        release.wait(3600)
    return message.body


async def hang_async(message: Message) -> Any:
    if message.body == "hang":
        await asyncio.sleep(3600)
    return message.body


async def hang_and_swallow(message: Message) -> Any:
    while message.body == "hang" and not release.is_set():
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return message.body


def busy(message: Message) -> Any:
    running["now"] += 1
    most["threads"] = max(most["threads"], threading.active_count())
    most["busy"] = max(most["busy"], running["now"])
    time.sleep(0.01 * (message.body % 3))
    running["now"] -= 1
    return message.body


async def busy_async(message: Message) -> Any:
    running["now"] += 1
    most["busy"] = max(most["busy"], running["now"])
    await asyncio.sleep(0.01 * (message.body % 3))
    running["now"] -= 1
    return message.body


def in_which_thread(message: Message) -> Any:
    return {"daemon": threading.current_thread().daemon, "name": threading.current_thread().name}


not_callable = 5

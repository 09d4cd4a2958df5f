"""What can be seen of a stream from outside: its producer, and what this process holds."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any, NamedTuple

import psutil

from airflow_provider_sharedstream.stream.producer import BrokerStreamProducer
from airflow_provider_sharedstream.triggers.pubsub import PubSubSharedStreamTrigger


class ObservedTrigger(PubSubSharedStreamTrigger):
    """The trigger, whose producers can be looked at."""

    producers: dict[str, BrokerStreamProducer] = {}
    """The latest of each subscription."""

    @classmethod
    def create_shared_stream_producer(cls, kwargs: dict[str, Any]) -> BrokerStreamProducer:
        producer = super().create_shared_stream_producer(kwargs)
        assert isinstance(producer, BrokerStreamProducer)
        cls.producers[producer.consumer.stream] = producer
        return producer


class Census(NamedTuple):
    """What this process holds."""

    tasks: int
    threads: int
    sockets: int


async def census() -> Census:
    """Count when what was closed has had time to go."""
    last = _count()
    for _ in range(30):
        await asyncio.sleep(0.2)
        now = _count()
        if now == last:
            break
        last = now
    return last


def _count() -> Census:
    gc.collect()
    return Census(len(asyncio.all_tasks()), threading.active_count(), len(psutil.Process().net_connections()))

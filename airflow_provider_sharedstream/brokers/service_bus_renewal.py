"""Renewing many locks in one request.

The protocol has it (``com.microsoft:renew-lock`` takes an array of tokens), the SDK's public interface hasn't: there it
is one request a message, and two at once mix up each other's answers. A thousand locks would take seconds of each half
of a lock's life, in which nothing is received or settled: 12 s where a request takes 10 ms. In requests of a hundred
they take a tenth of a second. So this calls the SDK's own method below the public one, as long as it is there and does
what it did; else the caller renews one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_sharedstream.brokers.service_bus_errors import is_lock_lost


async def renewed_together(receiver: Any, messages: Sequence[Any], seconds: float) -> bool:
    """Renew the locks of ``messages``, all of them or none.

    :param receiver: the SDK's.
    :param seconds: longest wait for the answer.
    :return: False: one of them is lost, or this SDK is another; they have to be renewed one by one.
    """
    renew_locks = getattr(receiver, "_renew_locks", None)
    if renew_locks is None or len(messages) < 2:
        return False
    try:
        answer = await renew_locks(*(message.lock_token for message in messages), timeout=seconds)
    except Exception as error:
        if is_lock_lost(error):
            return False
        raise
    expirations = answer.get(b"expirations") if isinstance(answer, dict) else None
    if expirations is None or len(expirations) != len(messages):
        return False
    for message, milliseconds in zip(messages, expirations, strict=True):
        until = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
        # The SDK refuses to settle what it thinks has run out.
        message._expiry = until
        if message.locked_until_utc != until:
            return False
    return True

"""What is used of the Azure SDK below its public interface, each with what is done where a later SDK hasn't got it.

Two things can't be had above. Locks of many messages can't be renewed in one request, which the protocol has
(``com.microsoft:renew-lock`` takes an array of tokens): it is one request a message, and two at once mix up each
other's answers. A thousand locks would take seconds of each half of a lock's life, in which nothing is received or
settled: 12 s where a request takes 10 ms, instead of a tenth of a second. And a receiver whose connection has broken
opens it again in the middle of a settlement, once for each that waits for its answer, and over each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_provider_sharedstream.brokers.service_bus.errors import is_lock_lost


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


def keep_from_reopening(receiver: Any, forbidden: Callable[[], bool]) -> bool:
    """Have a receiver that is open say that it has broken, instead of opening its connection again.

    :param receiver: the SDK's.
    :param forbidden: whether it may not even use the connection for a management request, to which the SDK resorts
        when a settlement fails.
    :return: whether that is possible; else nothing may be settled side by side.
    """
    open_again = getattr(receiver, "_open", None)
    if open_again is None or not hasattr(receiver, "_running"):
        return False
    from azure.servicebus.exceptions import ServiceBusError

    async def refuse(*arguments: Any, **options: Any) -> None:
        if forbidden() or not receiver._running:
            # Told to be final, and to leave the closing to us, or the SDK would close it once for each settlement.
            raise ServiceBusError("The connection was lost.", retryable=False, shutdown_handler=False)
        await open_again(*arguments, **options)

    receiver._open = refuse
    return True

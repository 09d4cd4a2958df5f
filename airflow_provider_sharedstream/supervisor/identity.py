"""From a stored trigger to its stream."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_sharedstream.triggers.mark import StreamIdentity, is_ours, read_mark

log = logging.getLogger(__name__)


def identify(name: str, classpath: str, arguments: Mapping[str, Any] | Exception) -> StreamIdentity | None:
    """Return the stream of a trigger; None: it isn't this package's, or nobody can say.

    Only this package's own modules are imported: this process holds the database, where Airflow runs no user's code.

    :param name: of the watcher, for logs.
    :param classpath: as stored.
    :param arguments: as stored, or why they can't be read.
    """
    module, _, class_name = classpath.rpartition(".")
    if isinstance(arguments, Exception):
        if is_ours(module):
            log.error("The stored arguments of %s can't be read, it can't be started: %s", name, arguments)
        return None
    if (identity := read_mark(arguments)) is not None:
        return identity
    if not is_ours(module):
        return None
    try:
        from airflow_provider_sharedstream.triggers.base import BrokerEventTrigger

        trigger = getattr(importlib.import_module(module), class_name)(**arguments)
        if not isinstance(trigger, BrokerEventTrigger):
            return None
        return trigger.stream_identity()
    except Exception as error:
        log.error("The trigger of %s can't be made of its stored arguments, it can't be started: %s", name, error)
        return None

"""The options of ``[sharedstream]`` in Airflow's configuration.

One that can't be used is said to be so, and its default holds: a slip of the pen must not end a stream.
"""

from __future__ import annotations

import logging
import math

log = logging.getLogger(__name__)

SECTION = "sharedstream"


def seconds(option: str, default: float) -> float:
    """Return an option that is a duration, in seconds.

    :param option: its name.
    :param default: holds where it isn't set, is empty, or is no number from zero on.
    """
    from airflow.configuration import conf

    text = conf.get(SECTION, option, fallback="")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if math.isfinite(value) and value >= 0:
        return value
    log.error("[%s] %s = %r is not a number of seconds; it is taken for %g", SECTION, option, text, default)
    return default


def switch(option: str, default: bool) -> bool:
    """Return an option that is on or off.

    :param option: its name.
    :param default: holds where it isn't set, or is neither.
    """
    from airflow.configuration import conf
    from airflow.exceptions import AirflowConfigException

    try:
        return conf.getboolean(SECTION, option, fallback=default)
    except (AirflowConfigException, ValueError) as error:
        log.error("[%s] %s is taken for %s: %s", SECTION, option, default, error)
        return default

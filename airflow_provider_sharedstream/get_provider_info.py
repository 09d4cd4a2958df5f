"""The ``apache_airflow_provider`` entry point: what Airflow asks every provider for at start-up."""

from __future__ import annotations

from importlib.resources import files
from typing import Any, cast

import yaml


def get_provider_info() -> dict[str, Any]:
    """
    Return the provider's metadata as Airflow's ``provider_info.schema.json`` describes it.

    It is the content of ``provider.yaml``, which lies beside this module. Each call returns a new dictionary, since
    Airflow adds to the one it is given.
    """
    text = files(__package__).joinpath("provider.yaml").read_text(encoding="utf-8")
    return cast("dict[str, Any]", yaml.safe_load(text))

"""Run as a program: import the modules named as arguments where no broker's SDK can be imported.

Prints one line for each module that cannot be imported so, and ends with 1 where there is one.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# httpx is not among them: Airflow's own task SDK imports it.
SDKS = ("aioboto3", "aiobotocore", "aiokafka", "airflow.providers.amazon", "azure", "boto3", "botocore", "google.cloud")


class NoSdks(MetaPathFinder):
    """Stands in front of every other finder and refuses the SDKs."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if any(fullname == sdk or fullname.startswith(f"{sdk}.") for sdk in SDKS):
            raise ModuleNotFoundError(f"{fullname} is imported before a stream connects", name=fullname)
        return None


def main(modules: list[str]) -> int:
    sys.meta_path.insert(0, NoSdks())
    failed = 0
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"{module}: {error}")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

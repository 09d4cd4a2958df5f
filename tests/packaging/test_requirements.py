"""Whatever the package imports, early or late, it requires: by itself or by an extra."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import airflow_provider_sharedstream

PACKAGE = Path(airflow_provider_sharedstream.__file__).parent
# aioboto3, or the Amazon provider with its extra, brings these; the provider is in an environment of its own, and the
# signer of the extra `kafka-msk` in none.
BROUGHT_ALONG = ("aiobotocore", "airflow.providers.amazon", "aws_msk_iam_sasl_signer", "botocore")


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> Iterator[tuple[Path, str]]:
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((file, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield file, node.module


def test_every_import_is_required() -> None:
    required = {canonical(re.split(r"[\[<>=!; ]", line)[0]) for line in requires("airflow-provider-sharedstream") or ()}
    # The packages that bring Airflow's own names.
    required |= {"apache-airflow-task-sdk", "apache-airflow-providers-standard"}
    providers = packages_distributions()
    unknown = []
    seen = set()
    for file, module in imported():
        top = module.partition(".")[0]
        seen.add(top)
        if top in sys.stdlib_module_names or top == PACKAGE.name or module.startswith(BROUGHT_ALONG):
            continue
        if required.isdisjoint(canonical(dist) for dist in providers.get(top, ())):
            unknown.append(f"{file.relative_to(PACKAGE)}: {module}")
    assert {"airflow", "yaml"} <= seen
    assert unknown == []

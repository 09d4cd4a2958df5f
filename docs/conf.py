"""The documentation. The list of modules is written from the code, into ``_build/generated``."""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path

HERE = Path(__file__).parent
# Airflow writes its configuration at import.
os.environ.setdefault("AIRFLOW_HOME", str(HERE.parent / ".local" / "airflow"))

from airflow_provider_sharedstream import __version__  # noqa: E402

project = "airflow-provider-sharedstream"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Shared streams {version}"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
# Modules that don't know of each other have classes of one name; a hint imported for type checkers names no module.
suppress_warnings = ["ref.python"]
autodoc_default_options = {"members": True, "show-inheritance": True}

API = [
    ("Triggers", "airflow_provider_sharedstream.triggers"),
    ("Messages", "airflow_provider_sharedstream.messages"),
    ("Brokers", "airflow_provider_sharedstream.brokers"),
    ("Connections", "airflow_provider_sharedstream.connections"),
    ("The common machine", "airflow_provider_sharedstream.stream"),
    ("In the triggerer's supervisor", "airflow_provider_sharedstream.supervisor"),
]


def api() -> str:
    """One section a package, its modules in alphabetical order."""
    lines = []
    for title, name in API:
        package = importlib.import_module(name)
        lines += [title, "=" * len(title), "", f".. automodule:: {name}", ""]
        for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
            lines += [module, "-" * len(module), "", f".. automodule:: {name}.{module}", ""]
    return "\n".join(lines)


def generate() -> None:
    folder = HERE / "_build" / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "api.rst").write_text(api(), encoding="utf-8")


generate()

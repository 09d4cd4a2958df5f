"""A Dag file parses on a machine that has no broker's SDK, so every module imports without one."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import airflow_provider_sharedstream

PROGRAM = Path(__file__).with_name("import_without_sdks.py")


def import_without_sdks(*modules: str, path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROGRAM), *modules],
        env={**os.environ, "PYTHONPATH": str(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_every_module_imports_without_an_sdk(tmp_path: Path) -> None:
    package = airflow_provider_sharedstream
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
    assert f"{package.__name__}.get_provider_info" in modules
    done = import_without_sdks(*modules, path=tmp_path)
    assert done.returncode == 0, done.stdout


def test_an_early_import_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "hasty.py").write_text("import aiokafka.errors\n")
    (tmp_path / "patient.py").write_text("def connect():\n    import aiokafka.errors\n")
    done = import_without_sdks("hasty", "patient", path=tmp_path)
    assert done.returncode == 1
    assert "hasty: aiokafka is imported before a stream connects" in done.stdout
    assert "patient" not in done.stdout

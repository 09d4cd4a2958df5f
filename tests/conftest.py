"""What holds for every test."""

from __future__ import annotations

import os
from pathlib import Path

# Before Airflow is imported, which writes its configuration there.
os.environ.setdefault("AIRFLOW_HOME", str(Path(__file__).parents[1] / ".local" / "airflow"))

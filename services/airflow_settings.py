"""The variables of an Airflow that starts fast, listens on 127.0.0.1 only and shows what it does."""

from __future__ import annotations

import base64
import json
import os
import secrets
from pathlib import Path

# Makes `job.hostname` the component's name, so that a row of the job table can be told to be this process's.
_HOSTNAME_MODULE = '''"""Written at every start."""

import os


def component() -> str:
    return os.environ.get("SHAREDSTREAM_COMPONENT", "command")
'''


def settings(
    home: Path, dags: Path, *, database: str, port: int, parse_seconds: int, parallelism: int
) -> dict[str, str | None]:
    """Variables on top of this program's own, whose AIRFLOW* are removed; writes what they refer to into `home`."""
    config = home / "config"
    config.mkdir(parents=True, exist_ok=True)
    (config / "component_hostname.py").write_text(_HOSTNAME_MODULE)
    keys = _keys(config / "keys.json")
    url = f"http://127.0.0.1:{port}"
    inherited: dict[str, str | None] = {key: None for key in os.environ if key.startswith("AIRFLOW")}
    return inherited | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # A paused Dag has no triggers.
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": str(parallelism),
        "AIRFLOW__CORE__FERNET_KEY": keys["fernet"],
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__HOSTNAME_CALLABLE": "component_hostname.component",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": keys["api"],
        "AIRFLOW__API_AUTH__JWT_SECRET": keys["jwt"],
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": str(parse_seconds),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": str(parse_seconds),
        "AIRFLOW__DAG_PROCESSOR__BUNDLE_REFRESH_CHECK_INTERVAL": "1",
        "AIRFLOW__DAG_PROCESSOR__PARSING_PROCESSES": "1",
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(home / "logs"),
    }


def _keys(file: Path) -> dict[str, str]:
    """Made once a home: trigger arguments in its database are encrypted with one of them."""
    if not file.exists():
        keys = {
            "fernet": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
            "api": secrets.token_hex(16),
            "jwt": secrets.token_hex(32),
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(keys))
    return dict(json.loads(file.read_text()))

"""The little of Airflow's REST API that tests, demo and benchmarks ask."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import httpx


class AirflowClient:
    """Asks an API server that takes everybody for an administrator.

    :param url: the server's, without /api.
    """

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=60, trust_env=False)

    def close(self) -> None:
        self._http.close()

    def request(self, method: str, path: str, **arguments: Any) -> Any:
        """JSON of an answer of /api/v2; raises httpx.HTTPStatusError with the answer's text when it is an error."""
        answer = self._http.request(method, f"/api/v2{path}", **arguments)
        if answer.status_code == 401:
            token = self._http.get("/auth/token").raise_for_status().json()["access_token"]
            self._http.headers["Authorization"] = f"Bearer {token}"
            answer = self._http.request(method, f"/api/v2{path}", **arguments)
        if answer.is_error:
            text = f"{method} {path}: {answer.status_code} {answer.text[:2000]}"
            raise httpx.HTTPStatusError(text, request=answer.request, response=answer)
        return answer.json() if answer.content else None

    def all(self, path: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """All items of a collection, page by page; `key` is the list's name in the answer."""
        items: list[dict[str, Any]] = []
        while True:
            page = self.request("GET", path, params={"limit": 100, "offset": len(items), **parameters})
            items += page[key]
            if not page[key] or len(items) >= page["total_entries"]:
                return items

    def dags(self) -> list[str]:
        """Ids of the Dags that were parsed."""
        return [dag["dag_id"] for dag in self.all("/dags", "dags")]

    def import_errors(self) -> dict[str, str]:
        """Dag file -> traceback."""
        return {error["filename"]: error["stack_trace"] for error in self.all("/importErrors", "import_errors")}

    def pause(self, dag_id: str, paused: bool = True) -> None:
        self.request("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run by hand and return its id."""
        run = self.request("POST", f"/dags/{dag_id}/dagRuns", json={"logical_date": None, "conf": conf or {}})
        return str(run["dag_run_id"])

    def dag_runs(self, dag_id: str = "~") -> list[dict[str, Any]]:
        """Runs of one Dag, or of all."""
        return self.all(f"/dags/{dag_id}/dagRuns", "dag_runs")

    def run_states(self) -> dict[str, collections.Counter[str]]:
        """Dag id -> state -> number of runs."""
        states: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for run in self.dag_runs():
            states[run["dag_id"]][run["state"]] += 1
        return states

    def task_instances(self, dag_id: str = "~", run_id: str = "~") -> list[dict[str, Any]]:
        return self.all(f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances", "task_instances")

    def task_log(self, dag_id: str, run_id: str, task_id: str, try_number: int = 1) -> str:
        """A task's log, a line a message."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/logs/{try_number}"
        answer = self.request("GET", path, params={"full_content": True})
        content = answer["content"]
        if isinstance(content, str):
            return content
        return "\n".join(line for entry in content for line in _lines(entry))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """What a task returned."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/{key}"
        return self.request("GET", path)["value"]


def _lines(entry: dict[str, Any]) -> Iterator[str]:
    """What a structured log entry says; an exception as Python shows it."""
    yield str(entry.get("event", entry))
    for error in entry.get("error_detail") or ():
        for frame in error.get("frames", ()):
            yield f'  File "{frame["filename"]}", line {frame["lineno"]}, in {frame["name"]}'
        yield f"{error['exc_type']}: {error['exc_value']}"

"""Names and labels of metrics, and that no message is lost for one."""

from __future__ import annotations

import ast
import importlib
import logging
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.observability import stats

import airflow_provider_sharedstream
from airflow_provider_sharedstream.stream import metrics
from airflow_provider_sharedstream.stream.metrics import METRICS, Metric, StreamMetrics

ROOT = Path(airflow_provider_sharedstream.__file__).parent
OPERATIONS = ROOT.parent / "docs" / "operations.md"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, Any, dict[str, str]]]:
    """What reaches Airflow."""
    found: list[tuple[str, str, Any, dict[str, str]]] = []
    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(
            stats, kind, lambda name, value, tags, kind=kind: found.append((kind, name, value, dict(tags)))
        )
    return found


def test_each_is_in_the_table_once() -> None:
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert re.fullmatch(r"sharedstream\.[a-z_]+", metric.name)
        assert metric.meaning
        assert not metric.meaning.endswith(".")
    assert set(METRICS) == {value for value in vars(metrics).values() if isinstance(value, Metric)}


def test_the_documentation_has_them_all_in_its_table() -> None:
    rows = re.findall(r"^\| `(sharedstream\.\w+)` \| (\w+) \| (.*?) ?\|", OPERATIONS.read_text(), re.MULTILINE)
    labels = {metric.name: ", ".join(f"`{label}`" for label in metric.labels) for metric in METRICS}
    assert rows == [(metric.name, metric.kind, labels[metric.name]) for metric in METRICS]


def test_labels_are_those_of_the_table() -> None:
    """Every call in the package passes just the labels that the table names for its metric."""
    calls = 0
    for module in pkgutil.walk_packages([str(ROOT)], "airflow_provider_sharedstream."):
        if module.ispkg or ".example_dags" in module.name:
            continue
        path = Path(str(importlib.util.find_spec(module.name).origin))  # type: ignore[union-attr]
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr not in ("count", "gauge", "timing") or not node.args:
                continue
            first = node.args[0]
            if isinstance(first, ast.Attribute) and isinstance(first.value, ast.Name) and first.value.id == "metrics":
                metric = getattr(metrics, first.attr)
                labels = {keyword.arg for keyword in node.keywords}
                assert labels == set(metric.labels), f"{path.name}:{node.lineno} {metric.name}"
                kind = {"count": "counter", "gauge": "gauge", "timing": "timer"}[node.func.attr]
                assert kind == metric.kind, f"{path.name}:{node.lineno} {metric.name}"
                calls += 1
    assert calls > 10


def test_source_and_stream_go_with_each(told: list[Any]) -> None:
    made = StreamMetrics("sqs", "orders.fifo")
    made.count(metrics.SETTLED, 3, disposition="accept")
    made.count(metrics.SETTLED, 0, disposition="accept")
    made.gauge(metrics.UP, 0)
    made.timing(metrics.CONFIRM, 1.5)
    tags = {"source": "sqs", "stream": "orders.fifo"}
    assert told == [
        ("incr", "sharedstream.settled", 3, {**tags, "disposition": "accept"}),
        ("gauge", "sharedstream.up", 0, tags),
        ("timing", "sharedstream.confirm", 1500.0, tags),
    ]


def test_a_stream_name_becomes_one_that_a_backend_takes(told: list[Any]) -> None:
    StreamMetrics("directory", "/data/eingänge, neu=1").gauge(metrics.UP, 1)
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", told[0][3]["stream"])


def test_a_backend_that_fails_costs_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no backend")

    for kind in ("incr", "gauge", "timing"):
        monkeypatch.setattr(stats, kind, fail)
    monkeypatch.setattr(metrics, "_failures_said", set())
    made = StreamMetrics("sqs", "orders")
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            made.count(metrics.RECEIVED, 1)
            made.gauge(metrics.UP, 1)
    assert len(caplog.records) == 2

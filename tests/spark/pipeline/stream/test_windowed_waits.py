"""Windowed waits of a stream, beside a count in plain Python."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from purgatory.stream.metrics import StreamMetrics
from purgatory.stream.sinks import ParquetSink, StreamConfig, open_sinks
from purgatory.stream.stream import run_query
from tests.spark.pipeline.stream.conftest import Feed, FileSource
from tests.spark.pipeline.stream.sample_rows import SECOND_US, STARTED_US, operation

WINDOW_US = 10 * SECOND_US
OUTCOMES = ("immediate", "completed", "completed", "expired", "failed", "pending")


def run_once(session: SparkSession, source: FileSource, out: Path, **more: Any) -> StreamMetrics:
    """Read all records, and return the metrics."""
    config = StreamConfig(out, out / "checkpoint", once=True, **more)
    metrics = StreamMetrics()
    run_query(session, source, config, open_sinks(config), metrics, threading.Event())
    return metrics


def rows_in(folder: Path) -> list[dict[str, Any]]:
    """All rows of a table of results."""
    return [row for rows in ParquetSink(folder).read() for row in rows.to_pylist()]


def counted(operations: Sequence[Mapping[str, Any]], until_us: int) -> dict[Any, Mapping[str, Any]]:
    """The expected rows of the windows that end by then: in plain Python."""
    windows: dict[Any, list[Mapping[str, Any]]] = {}
    for row in operations:
        start_us = (STARTED_US + row["end_us"]) // WINDOW_US * WINDOW_US
        if start_us + WINDOW_US <= STARTED_US + until_us:
            windows.setdefault((row["purgatory"], row["kind"], start_us), []).append(row)
    expected: dict[Any, Mapping[str, Any]] = {}
    for key, rows in windows.items():
        waits = sorted(row["wait_us"] for row in rows if row["outcome"] != "pending")
        finished = [row for row in rows if row["outcome"] != "pending"]
        expired = sum(row["outcome"] == "expired" for row in rows)
        expected[key] = {
            "operations": len(rows),
            "expired": expired,
            "expiry_ratio": expired / len(finished) if finished else None,
            "wait_mean_us": sum(waits) / len(waits) if waits else None,
            "wait_max_us": waits[-1] if waits else None,
            "wait_p50_us": pytest.approx(np.percentile(waits, 50)) if waits else None,
            "wait_p99_us": pytest.approx(np.percentile(waits, 99)) if waits else None,
        }
    return expected


def test_windows_match_plain_python_across_restarts(
    spark: SparkSession, source: FileSource, feed: Feed, tmp_path: Path
) -> None:
    chance = random.Random(3)
    operations = []
    for _ in range(600):
        more = {
            "purgatory": chance.choice(["Produce", "Fetch"]),
            "kind": chance.choice(["producer", "follower"]),
        }
        end_us = chance.randrange(50 * SECOND_US)
        operations.append(
            operation(end_us, chance.choice(OUTCOMES), chance.randrange(10_000), **more)
        )
    # Out of order by less than rows may be late.
    operations.sort(key=lambda row: row["end_us"] + chance.randrange(8 * SECOND_US))
    feed(operations[:250])
    run_once(spark, source, tmp_path / "out", watermark_delay_us=10 * SECOND_US)
    before = len(rows_in(tmp_path / "out" / "waits"))
    feed(operations[250:450])
    feed(operations[450:])
    feed([operation(60 * SECOND_US)])
    metrics = run_once(spark, source, tmp_path / "out", watermark_delay_us=10 * SECOND_US)

    rows = rows_in(tmp_path / "out" / "waits")
    found = {
        (row["purgatory"], row["kind"], round(row["window_start"].timestamp() * SECOND_US)): row
        for row in rows
    }
    expected = counted(operations, until_us=50 * SECOND_US)
    assert len(rows) == len(found) == len(expected) == 20
    assert 0 < before < 20
    for key, columns in expected.items():
        assert {name: found[key][name] for name in columns} == columns, key
    assert rows_in(tmp_path / "out" / "quarantine" / "waits") == []
    total = 0.0
    for row in rows:
        labels = {name: row[name] for name in ("purgatory", "kind")}
        total += row["expired"]
        ratio = metrics.registry.get_sample_value("purgatory_live_expiry_ratio", labels)
        assert ratio is not None
    family = "purgatory_live_operations_total"
    assert total == sum(
        sample.value
        for metric in metrics.registry.collect()
        for sample in metric.samples
        if sample.name == family and sample.labels["outcome"] == "expired"
    )


def test_late_and_bad_rows_change_no_window_and_are_counted(
    spark: SparkSession, source: FileSource, feed: Feed, tmp_path: Path
) -> None:
    good = operation(5 * SECOND_US, "expired")
    feed([good, "no JSON", "", "{}", {**good, "end_us": 1, "start_us": 2}])
    feed([operation(30 * SECOND_US), {**good, "end_us": 10**16, "wait_us": 10**16}])
    feed([operation(35 * SECOND_US)])
    late = [operation(6 * SECOND_US, "expired") for _ in range(3)]
    feed([*late, operation(36 * SECOND_US)])
    run_once(spark, source, tmp_path / "out", watermark_delay_us=10 * SECOND_US)
    windows = rows_in(tmp_path / "out" / "waits")
    assert [(row["operations"], row["expired"]) for row in windows] == [(1, 1)]
    quarantine = rows_in(tmp_path / "out" / "quarantine" / "waits")
    told: Counter[tuple[str, str]] = Counter()
    for row in quarantine:
        told[row["source"], row["reason"]] += row["rows"]
    assert dict(told) == {
        ("operations", "late"): 3,
        ("operations", "bad row: no row of JSON"): 2,
        ("operations", "bad row: no broker"): 1,
        ("operations", "bad row: impossible time"): 2,
    }

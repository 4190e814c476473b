"""Throughput and consumer lag, recounted from the rows of a trace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from purgatory.pipeline.engines.run import run_job
from purgatory.pipeline.report.throughput import consumer_lag, throughput_over_time


def _row(start_us: int, kind: str, group: str, end: int | None, partition: int = 0) -> Any:
    return {
        "window_start_us": start_us,
        "window_end_us": start_us + 100,
        "kind": kind,
        "group": group,
        "topic": "orders",
        "partition": partition,
        "records": 1,
        "end_offset": end,
    }


def test_each_record_counts_in_its_window(simulated: Path, tmp_path: Path) -> None:
    trace = simulated / "slow-follower"
    run_job("analyze", [trace], tmp_path / "out", engine="duckdb")
    rows = pq.read_table(tmp_path / "out" / "throughput").to_pylist()
    width_us = rows[0]["window_end_us"] - rows[0]["window_start_us"]
    counted: Counter[tuple[Any, ...]] = Counter()
    ends: dict[tuple[Any, ...], int] = {}
    for table, kind, time in (("sends", "producer", "answer_us"), ("reads", "consumer", "time_us")):
        for row in pq.read_table(trace / table).to_pylist():
            if row[time] is None or row.get("outcome", "ok") != "ok":
                continue
            start_us = row[time] - row[time] % width_us
            key = (start_us, kind, row["group"], row["topic"], row["partition"])
            counted[key] += 1
            ends[key] = max(ends.get(key, 0), row["offset"] + 1)
    names = ("window_start_us", "kind", "group", "topic", "partition")
    assert {tuple(row[name] for name in names): row["records"] for row in rows} == counted
    assert {tuple(row[name] for name in names): row["end_offset"] for row in rows} == ends
    assert len({row["kind"] for row in rows}) == 2


def test_lag_counts_records_that_a_group_has_not_read() -> None:
    rows = [
        _row(0, "producer", "p", 10),
        _row(0, "producer", "p", 4, partition=1),
        _row(0, "consumer", "c", 7),
        _row(100, "consumer", "c", 12),  # beyond acknowledged records: no lag
        _row(200, "producer", "p", 15),
        _row(200, "consumer", "c", 4, partition=1),
        _row(200, "producer", "p", None),
    ]
    assert consumer_lag(rows, [0, 100, 200]) == {("c", "orders"): [7, 4, 3]}


def test_throughput_is_per_second_and_zero_without_records() -> None:
    rows = [_row(0, "producer", "p", 1), _row(200, "producer", "p", 2)]
    (line,) = throughput_over_time(rows, 300)["data"]
    assert line["y"] == [10_000, 0, 10_000]
    assert line["meta"] == {"client": "p", "topic": "orders", "row": "0"}


def test_throughput_omits_windows_within_a_long_gap() -> None:
    rows = [_row(0, "producer", "p", 1), _row(10**12, "producer", "p", 2)]
    (line,) = throughput_over_time(rows, 10**12)["data"]
    assert line["x"] == [0.00005, 0.00015, (10**12 - 50) / 1e6, (10**12 + 50) / 1e6]
    assert line["y"] == [10_000, 0, 0, 10_000]

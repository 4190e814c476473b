"""Replica lag and the ISR over time, from changes that are written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from purgatory.pipeline.report.page import PagePart
from purgatory.pipeline.report.replication import (
    replication_over_time,
    replication_results,
    replication_rows,
    replication_section,
)
from purgatory.trace.trace_writer import arrow_schema


def _log_end(time_us: int, broker: int, end: int | None) -> dict[str, Any]:
    return {"time_us": time_us, "change": "log_end", "broker": broker, "number": end}


def _partition(time_us: int, leader: int, in_sync: list[str]) -> dict[str, Any]:
    replicas = {"names": ["0", "1", "2"], "in_sync": in_sync}
    return {"time_us": time_us, "change": "partition", "broker": leader, "number": 0, **replicas}


def _run(folder: Path, changes: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [{"run_id": "r", "name": "orders", "partition": 0, **change} for change in changes]
    (folder / "changes").mkdir(parents=True)
    table = pa.Table.from_pylist(rows, schema=arrow_schema("changes"))
    pq.write_table(table, folder / "changes" / "part-00000.parquet")
    return {"run_id": "r", "folder": str(folder), "duration_us": 300, "faults": []}


def _by_window(run: dict[str, Any]) -> dict[tuple[int, int], tuple[int, int]]:
    return {
        (row["window_start_us"], row["broker"]): (row["replica_lag"], row["out_of_sync"])
        for row in replication_rows(run, 100)
    }


def test_each_window_has_the_most_that_a_replica_was_behind(tmp_path: Path) -> None:
    run = _run(
        tmp_path / "trace",
        [
            _partition(0, 0, ["0", "1", "2"]),
            *(_log_end(0, broker, 0) for broker in (0, 1, 2)),
            _log_end(10, 0, 8),
            _log_end(20, 1, 8),
            _partition(110, 0, ["0", "1"]),
            _log_end(120, 0, 9),
            _log_end(130, 1, 9),
        ],
    )
    assert _by_window(run) == {
        (0, 0): (0, 0),
        (0, 1): (8, 0),
        (0, 2): (8, 0),
        (100, 0): (0, 0),
        (100, 1): (1, 0),
        (100, 2): (9, 1),
        (200, 0): (0, 0),  # nothing changes any more
        (200, 1): (0, 0),
        (200, 2): (9, 1),
    }


def test_replicas_are_compared_with_their_new_leader(tmp_path: Path) -> None:
    changes = [_partition(0, 0, ["0", "1"]), _log_end(0, 0, 9), _log_end(0, 1, 5)]
    rows = _by_window(_run(tmp_path / "trace", [*changes, _partition(150, 1, ["1"])]))
    assert rows[0, 1] == (9, 0), "before the end of its log was known"
    assert rows[200, 0] == (0, 1) and rows[200, 1] == (0, 0) and rows[200, 2] == (5, 1)


def test_a_trace_without_changes_has_no_rows(tmp_path: Path) -> None:
    run = {"run_id": "r", "folder": str(tmp_path / "none"), "duration_us": 300, "faults": []}
    assert replication_rows(run, 100) == []
    assert replication_results([run], lambda _: 100) == []


def test_damaged_table_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "changes").mkdir()
    (tmp_path / "changes" / "part-00000.parquet").write_text("no Parquet")
    run = {"run_id": "r", "folder": str(tmp_path), "duration_us": 300, "faults": []}
    (row,) = replication_results([run], lambda _: 100)
    assert row["run_id"] == "r" and "\n" not in row["error"]
    section = replication_section(PagePart(0), run, [row])
    assert "The table changes can&#x27;t be read: " in section and "Parquet" in section


@pytest.mark.parametrize(
    "foreign",
    [
        {"time_us": [1], "text": ["a table of somebody else's"]},
        {"time_us": ["noon"], "change": ["log_end"]},
        {
            "time_us": [1],
            "change": ["partition"],
            "broker": [0],
            "name": ["orders"],
            "partition": [0],
            "number": [0],
            "names": [["first"]],
            "in_sync": [["first"]],
        },
    ],
)
def test_foreign_table_is_reported(tmp_path: Path, foreign: dict[str, Any]) -> None:
    (tmp_path / "changes").mkdir()
    pq.write_table(pa.table(foreign), tmp_path / "changes" / "part-00000.parquet")
    run = {"run_id": "r", "folder": str(tmp_path), "duration_us": 300, "faults": []}
    assert [[*row] for row in replication_results([run], lambda _: 100)] == [["run_id", "error"]]


def test_each_broker_has_a_line_in_both_panels(tmp_path: Path) -> None:
    run = _run(tmp_path / "trace", [_partition(0, 0, ["0", "1", "2"]), _log_end(10, 0, 8)])
    lines = replication_over_time(replication_rows(run, 100), 300)["data"]
    assert {(line["yaxis"], line["meta"]["broker"]) for line in lines} == {
        (axis, broker) for axis in ("y", "y2") for broker in "012"
    }

"""Dirty traces: both engines have the same rows of them, and the same quarantine, cell by cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from purgatory.trace.trace_schema import TABLES
from tests.spark.pipeline.dirty_traces import MAPPING, DirtyTraces
from tests.spark.pipeline.reading_engines import (
    FoundRows,
    ReadingDuckdb,
    ReadingEngine,
    ReadingSpark,
    Rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("seed", "mapping"),
    [(1, MAPPING), pytest.param(2, None, marks=pytest.mark.exhaustive)],
)
def test_both_engines_read_the_same_rows(
    spark: SparkSession, tmp_path: Path, seed: int, mapping: dict[str, dict[str, Any]] | None
) -> None:
    dirty = DirtyTraces(seed, mapping)
    dirty.write_json(tmp_path / "lines", 300)
    dirty.write_json(tmp_path / "more lines", 40)
    dirty.write_parquet(tmp_path / "parts", 50)
    engines: list[ReadingEngine] = [ReadingSpark(spark), ReadingDuckdb()]
    by_spark, by_duckdb = (engine.read(tmp_path, mapping) for engine in engines)
    check_alike(by_spark, by_duckdb)
    for reason in ("torn line", "wrong type", "row of another run", "impossible time"):
        assert reason in {row["reason"] for row in by_duckdb.quarantine}
    assert all(by_duckdb.rows(table) for table in TABLES)


def check_alike(left: FoundRows, right: FoundRows) -> None:
    """Compare the rows that two engines read."""
    assert _with_parsed(left.quarantine) == _with_parsed(right.quarantine)
    assert left.counts == right.counts
    for table in TABLES:
        assert sorted(left.rows(table), key=str) == sorted(right.rows(table), key=str), table


def _with_parsed(quarantine: Rows) -> Rows:
    """A quarantine whose rows of Parquet are objects: engines write numbers in other ways."""
    return [row | {"content": _parsed(row)} for row in quarantine]


def _parsed(row: Mapping[str, Any]) -> Any:
    parquet = row["line"] is not None and row["file"].endswith(".parquet")
    return json.loads(row["content"]) if parquet else row["content"]

"""The shipped scenarios by Spark, whose tables are those of DuckDB; by day smaller runs show it."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from purgatory.pipeline.engines.run import run_opened
from purgatory.pipeline.engines.spark.frames import run_faults, run_spans
from purgatory.pipeline.engines.spark.traces import opened_in
from purgatory.pipeline.ingest.spark_reader import read_table
from purgatory.pipeline.ingest.trace_set import find_traces, read_trace_set
from purgatory.pipeline.jobs.registry import AUDIT
from tests.spark.pipeline.operation_rows import assert_same, occupancy_of, slowest_of, waits_of
from tests.spark.pipeline.test_shipped_scenarios import traces, written

__all__ = ["traces", "written"]
pytestmark = [pytest.mark.spark, pytest.mark.exhaustive, pytest.mark.timeout(900)]


def test_spark_writes_the_same_audits(
    spark: SparkSession, written: Path, traces: Path, tmp_path: Path
) -> None:
    with opened_in(spark, read_trace_set([traces]), tmp_path) as opened:
        run_opened(AUDIT, opened, expect=["order"])
    for table in ("audit", "witnesses"):
        by_spark = pq.read_table(tmp_path / table)
        by_duckdb = pq.read_table(written / table)
        assert by_spark.schema.names == by_duckdb.schema.names
        assert by_duckdb.num_rows and by_spark.to_pylist() == by_duckdb.to_pylist(), table


def test_duckdb_has_the_same_waits_and_occupancy(spark: SparkSession, traces: Path) -> None:
    # Of one scenario: Spark takes minutes for the peaks of all of them.
    surveyed = find_traces([traces / "slow-follower"])
    frame = read_table(spark, surveyed, "operations").persist()
    operations = frame.toArrow()
    spans = run_spans(spark, surveyed, frame).toArrow()
    faults = run_faults(spark, surveyed).toArrow()
    frame.unpersist()
    with duckdb.connect() as connection:
        for how in ({"by_topic": True}, {"window_us": 1_000_000, "percentiles": "approximate"}):
            by_duckdb = waits_of(connection, operations, **how)
            assert_same(by_duckdb, waits_of(spark, operations, **how))
        assert_same(slowest_of(connection, operations, 5), slowest_of(spark, operations, 5))
        found = occupancy_of(connection, operations, spans, faults)
        assert found["peaks"].num_rows > 1
        for name, table in occupancy_of(spark, operations, spans, faults).items():
            assert_same(found[name], table)

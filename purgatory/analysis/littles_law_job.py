"""Little's law in a trace: the mean size is the rate of arrivals times the mean wait.

Both sides are computed apart: the mean size from the sweep over starts and ends, the rest from the
operations. Over a run that ends with nothing parked, they are equal. What is still parked at the
end has a wait that nobody knows, and so no part in the mean wait: that is the discrepancy, and it
is stated how much of it these operations explain. An unexplained rest is an error in the
trace or in the sweep.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from purgatory.analysis.engines import small
from purgatory.analysis.occupancy_job import SERIES

_US_PER_S = 1_000_000


def littles_law(operations: DataFrame, occupancy: DataFrame, spans: DataFrame) -> DataFrame:
    """The table `littles_law`: a row per run, purgatory and broker (null: all of them).

    O(operations).

    Args:
        operations: the trace's table of that name.
        occupancy: the table that the function of that name makes of them.
        spans: as `occupancy` takes them.
    """
    width_us = f.col("bucket_end_us") - f.col("bucket_start_us")
    from_sweep = occupancy.groupBy(*SERIES).agg(
        # A whole number: rounded, it has the same sum in whatever order the buckets come.
        f.sum(f.round(f.col("size_mean") * width_us)).alias("area_us")
    )
    parked = _parked(operations, spans)
    run_s = f.col("end_us") / _US_PER_S
    joined = (
        from_sweep.alias("swept")
        .join(
            parked.alias("parked"),
            (f.col("swept.run_id") == f.col("parked.run_id"))
            & (f.col("swept.purgatory") == f.col("parked.purgatory"))
            & f.col("swept.broker").eqNullSafe(f.col("parked.broker")),
        )
        .select(*(f.col(f"swept.{name}") for name in SERIES), "area_us", *_MEASURED)
        .join(small(spans), "run_id")
        .withColumn("mean_wait_us", f.try_divide("settled_wait_us", "settled"))
        .withColumn("mean_parked", f.col("area_us") / f.col("end_us"))
        .withColumn("arrivals_per_s", f.col("entries") / run_s)
        .withColumn(
            "arrivals_times_wait", f.col("entries") * f.col("mean_wait_us") / f.col("end_us")
        )
        .withColumn("discrepancy", f.col("arrivals_times_wait") - f.col("mean_parked"))
    )
    # What the law says when each wait counts as far as it lies in the run.
    explained = f.col("arrivals_times_wait") - f.col("wait_in_run_us") / f.col("end_us")
    return joined.withColumn("explained_by_end", explained).select(
        *SERIES,
        "entries",
        "pending",
        "arrivals_per_s",
        "mean_wait_us",
        "arrivals_times_wait",
        "mean_parked",
        "discrepancy",
        "explained_by_end",
        (f.col("wait_in_run_us") / f.col("end_us") - f.col("mean_parked")).alias("unexplained"),
    )


_MEASURED = ["entries", "pending", "settled", "settled_wait_us", "wait_in_run_us"]


def _parked(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """Count all operations that waited, and their waits, per series."""
    is_pending = f.col("outcome") == "pending"
    until = f.when(is_pending, f.col("run_end_us")).otherwise(
        f.least("wait_end_us", f.col("run_end_us"))
    )
    by_broker = (
        operations.where("outcome != 'immediate'")
        .select(*SERIES, "start_us", f.col("end_us").alias("wait_end_us"), "outcome")
        .join(
            small(spans.select("run_id", f.col("end_us").alias("run_end_us"))),
            "run_id",
        )
        .withColumn("settled_us", f.when(~is_pending, f.col("wait_end_us") - f.col("start_us")))
        .groupBy(*SERIES)
        .agg(
            f.count(f.lit(1)).alias("entries"),
            f.count_if(is_pending).cast("bigint").alias("pending"),
            f.count("settled_us").alias("settled"),
            f.sum("settled_us").alias("settled_wait_us"),
            f.sum(f.greatest(until - f.col("start_us"), f.lit(0))).alias("wait_in_run_us"),
        )
    )
    return by_broker.unionByName(
        by_broker.groupBy("run_id", "purgatory")
        .agg(*(_total(name) for name in _MEASURED))
        .withColumn("broker", f.lit(None).cast("int"))
    )


def _total(name: str) -> Column:
    return f.sum(name).cast("bigint").alias(name)

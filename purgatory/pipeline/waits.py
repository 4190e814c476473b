"""How long operations waited: counts, shares and percentiles per run, purgatory and outcome."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

ALL_OUTCOMES = "all"
"""Stands in the column `outcome` of a row over all operations of a purgatory."""

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending", ALL_OUTCOMES)
"""The outcomes that a trace knows, in the order in which they are shown."""

PERCENTILES = {"wait_p50_us": 0.5, "wait_p95_us": 0.95, "wait_p99_us": 0.99}
"""The columns of percentiles, and the share of operations that waited at most that long."""


def waits(operations: DataFrame) -> DataFrame:
    """The table `waits`: a row per run, purgatory and outcome, and one over all outcomes.

    Percentiles are exact: Spark's `percentile`, which counts every different wait and
    interpolates between neighbours in rank, as numpy does. So a group's different waits, not its
    operations, must fit the memory of one task. An operation that was still pending at the end of
    the run counts with the time it had waited by then.

    Args:
        operations: the trace's table of that name.
    """
    shares = f.array(*(f.lit(share) for share in PERCENTILES.values()))
    grouped = (
        operations.select("run_id", "purgatory", "outcome", "wait_us")
        .groupingSets(
            [["run_id", "purgatory", "outcome"], ["run_id", "purgatory"]],
            "run_id",
            "purgatory",
            "outcome",
        )
        .agg(
            f.grouping("outcome").alias("is_all"),
            f.count(f.lit(1)).alias("operations"),
            f.mean("wait_us").alias("wait_mean_us"),
            f.percentile("wait_us", shares).alias("percentiles"),
            f.max("wait_us").alias("wait_max_us"),
        )
    )
    # The row over all outcomes has the most operations of its purgatory.
    total = f.max("operations").over(Window.partitionBy("run_id", "purgatory"))
    return grouped.withColumn("share", f.col("operations") / total).select(
        "run_id",
        "purgatory",
        f.when(f.col("is_all") == 1, ALL_OUTCOMES).otherwise(f.col("outcome")).alias("outcome"),
        "operations",
        "share",
        "wait_mean_us",
        *(f.col("percentiles")[rank].alias(name) for rank, name in enumerate(PERCENTILES)),
        "wait_max_us",
    )


def waits_order() -> list[str | Column]:
    """The order of the rows: by run and purgatory, and there by outcome, the total last."""
    shown = f.array(*(f.lit(outcome) for outcome in OUTCOMES))
    return ["run_id", "purgatory", f.array_position(shown, f.col("outcome")), "outcome"]

"""How long operations waited: counts, shares and percentiles per run, purgatory and outcome."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

ALL = "all"
"""Stands in the columns `kind` and `outcome` of a row over all kinds and over all outcomes."""

OUTCOMES = ("immediate", "completed", "expired", "cancelled", "failed", "pending", ALL)
"""The outcomes that a trace knows, in the order in which they are shown."""

PERCENTILES = {"wait_p50_us": 0.5, "wait_p95_us": 0.95, "wait_p99_us": 0.99}
"""The columns of percentiles, and the share of operations that waited at most that long."""


def waits(operations: DataFrame) -> DataFrame:
    """The table `waits`: a row per run, purgatory, kind and outcome, and rows over all of each.

    Percentiles are exact: Spark's `percentile`, which counts every different wait and
    interpolates between neighbours in rank, as numpy does. So a group's different waits, not its
    operations, must fit the memory of one task.

    The waits of a row over all outcomes are those of settled operations. One that was still
    pending when the run ended waited longer than the trace can tell; such are counted, and have
    their waits so far in a row of their own.

    Args:
        operations: the trace's table of that name.
    """
    pending = f.col("outcome") == "pending"
    grouped = (
        operations.select(
            "run_id",
            "purgatory",
            "kind",
            "outcome",
            f.when(~pending, f.col("wait_us")).alias("settled_us"),
            f.when(pending, f.col("wait_us")).alias("pending_us"),
        )
        .groupingSets(
            [
                ["run_id", "purgatory", "kind", "outcome"],
                ["run_id", "purgatory", "kind"],
                ["run_id", "purgatory", "outcome"],
                ["run_id", "purgatory"],
            ],
            "run_id",
            "purgatory",
            "kind",
            "outcome",
        )
        .agg(
            f.grouping("kind").alias("all_kinds"),
            f.grouping("outcome").alias("all_outcomes"),
            f.count(f.lit(1)).alias("operations"),
            _summary("settled_us").alias("settled"),
            _summary("pending_us").alias("pending"),
        )
    )
    summary = f.when(f.col("outcome") == "pending", f.col("pending")).otherwise(f.col("settled"))
    # The row over all outcomes has the most operations of its purgatory and kind.
    total = f.max("operations").over(Window.partitionBy("run_id", "purgatory", "all_kinds", "kind"))
    return (
        grouped.withColumn("share", f.col("operations") / total)
        .withColumn("wait", summary)
        .select(
            "run_id",
            "purgatory",
            f.when(f.col("all_kinds") == 1, ALL).otherwise(f.col("kind")).alias("kind"),
            f.when(f.col("all_outcomes") == 1, ALL).otherwise(f.col("outcome")).alias("outcome"),
            "operations",
            "share",
            f.col("wait.mean").alias("wait_mean_us"),
            *(f.col("wait.percentiles")[rank].alias(name) for rank, name in enumerate(PERCENTILES)),
            f.col("wait.max").alias("wait_max_us"),
        )
    )


def waits_order() -> list[str | Column]:
    """The order of the rows: by run, purgatory, kind and outcome, rows over all of them last."""
    shown = f.array(*(f.lit(outcome) for outcome in OUTCOMES))
    position = f.array_position(shown, f.col("outcome"))
    return ["run_id", "purgatory", f.col("kind") == ALL, "kind", position, "outcome"]


def _summary(column: str) -> Column:
    shares = f.array(*(f.lit(share) for share in PERCENTILES.values()))
    return f.struct(
        f.mean(column).alias("mean"),
        f.percentile(column, shares).alias("percentiles"),
        f.max(column).alias("max"),
    )

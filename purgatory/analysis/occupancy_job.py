"""How many operations waited at each time: the size of a purgatory as a step function.

The size goes up by one when an operation starts to wait and down by one when its wait ends; one
that was completed at once was never in. A wait covers its start and not its end. From these steps
each bucket of time gets the mean over the time in it and the highest size in it, both exact: a
peak of one microsecond shows in the maximum of its bucket.

No step needs a whole run in one task. The starts and ends of one run, purgatory and bucket go to
one task, which walks through them in the order of time and finds how far the size rose above what
it was at the start of the bucket. What it was there is the sum of all changes before, which takes
one sum per bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.engines import small

SERIES = ["run_id", "purgatory", "broker"]
"""The columns that tell one step function from another."""

_WHOLE = ["run_id", "purgatory"]


def occupancy(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """The table `occupancy`: a row per run, purgatory, broker and bucket of time.

    A broker of null stands for all brokers together. Every bucket from 0 to the end of the run has
    its row, also where nothing waited.

    O(operations), and a sort of the starts and ends in each bucket.

    Args:
        operations: the trace's table of that name.
        spans: `run_id`, `end_us` (where the run ends) and `width_us` (of its buckets), a row per
            run; small.
    """
    placed = operations.select(*SERIES, "start_us", "end_us", "outcome")
    by_broker = _rises(changes(placed, spans, SERIES))
    all_brokers = f.lit(None).cast("int")
    whole = (
        by_broker.groupBy(*_WHOLE, "bucket")
        .agg(
            f.sum("change").alias("change"),
            f.sum("area").alias("area"),
            f.max("whole_rise").alias("rise"),
            f.max("left_us").alias("left_us"),
        )
        .withColumn("broker", all_brokers)
    )
    brokers = operations.select(*SERIES).distinct()
    series = brokers.select(*_WHOLE).distinct().withColumn("broker", all_brokers)
    return in_buckets(
        by_broker.drop("whole_rise").unionByName(whole),
        brokers.unionByName(series),
        spans,
        SERIES,
    )


def changes(placed: DataFrame, spans: DataFrame, series: Sequence[str]) -> DataFrame:
    """How much the size changes at each start and end of a wait, and in which bucket that is.

    Returns:
        The columns of `series`, `at_us`, `bucket`, `change`, and `left_us`: from then to the end of
        the bucket. Nothing from the end of a run on.

    Args:
        placed: `start_us`, `end_us`, `outcome` of operations, and the columns of `series`.
        spans: as `occupancy` takes them.
        series: the columns that tell one step function from another, of which one is `run_id`.
    """
    goes_in = f.struct(f.col("start_us").alias("at_us"), f.lit(1).cast("bigint").alias("change"))
    goes_out = f.struct(
        f.col("wait_end_us").alias("at_us"), f.lit(-1).cast("bigint").alias("change")
    )
    pending = f.col("outcome") == "pending"
    return (
        placed.where("outcome != 'immediate'")
        .withColumnRenamed("end_us", "wait_end_us")
        .select(
            *series,
            f.explode(
                f.when(pending, f.array(goes_in)).otherwise(f.array(goes_in, goes_out))
            ).alias("step"),
        )
        .select(*series, *(f.col(f"step.{name}").alias(name) for name in ("at_us", "change")))
        .join(small(spans), "run_id")
        .where("at_us < end_us")
        .withColumn("bucket", f.expr("at_us div width_us"))
        .select(
            *series, "at_us", "bucket", "change", (_bucket_end() - f.col("at_us")).alias("left_us")
        )
    )


def _bucket_end() -> Column:
    return f.least((f.col("bucket") + 1) * f.col("width_us"), f.col("end_us"))


def _rises(steps: DataFrame) -> DataFrame:
    """Per series and bucket: the change in it, its area, and how far the size rose.

    The rise is counted from the size at the start of the bucket; `whole_rise` is that of all
    brokers together. One exchange serves both.
    """
    bucket = [*_WHOLE, "bucket"]
    # Without a frame, a sum in order is up to all rows of the same time: after all of its changes.
    whole = Window.partitionBy(*bucket).orderBy("at_us")
    own = Window.partitionBy(*bucket, "broker").orderBy("at_us")
    return aggregated(
        steps.repartition(*bucket)
        .withColumn("rise", f.sum("change").over(own))
        .withColumn("whole_rise", f.sum("change").over(whole)),
        [*bucket, "broker"],
        f.max("whole_rise").alias("whole_rise"),
    )


def aggregated(rises: DataFrame, by: Sequence[str], *more: Column) -> DataFrame:
    """A row per series and bucket, of steps that have their `rise`."""
    return rises.groupBy(*by).agg(
        f.sum("change").alias("change"),
        f.sum(f.col("change") * f.col("left_us")).alias("area"),
        f.max("rise").alias("rise"),
        f.max("left_us").alias("left_us"),
        *more,
    )


def in_buckets(
    rises: DataFrame, series: DataFrame, spans: DataFrame, names: Sequence[str]
) -> DataFrame:
    """Mean and maximum in each bucket of each series, those included in which nothing changed.

    Args:
        rises: what `aggregated` returns.
        series: all series, a row each; few.
        spans: as `occupancy` takes them.
        names: the columns that tell one series from another.
    """
    every_bucket = (
        series.join(small(spans), "run_id")
        .where("end_us > 0")
        .withColumn("bucket", f.explode(f.expr("sequence(0, (end_us - 1) div width_us)")))
    )
    nothing = every_bucket.select(
        *names,
        "bucket",
        f.lit(0).cast("bigint").alias("change"),
        f.lit(0).cast("bigint").alias("area"),
        *(f.lit(None).cast("bigint").alias(name) for name in ("rise", "left_us")),
    )
    earlier = (
        Window.partitionBy(*names).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    )
    start, end = f.col("bucket") * f.col("width_us"), _bucket_end()
    # The size at the start of a bucket counts, unless it changed at once.
    changed_at_once = f.col("left_us") == end - start
    rise = f.when(changed_at_once, f.col("rise")).otherwise(f.greatest("rise", f.lit(0)))
    return (
        rises.unionByName(nothing)
        .groupBy(*names, "bucket")
        .agg(*(how(name).alias(name) for name, how in _BUCKET_OF_PARTS.items()))
        .withColumn("opening", f.coalesce(f.sum("change").over(earlier), f.lit(0)))
        .join(small(spans), "run_id")
        .select(*names, "bucket", "opening", "area", "rise", "left_us", "width_us", "end_us")
        .select(
            *names,
            start.alias("bucket_start_us"),
            end.alias("bucket_end_us"),
            (f.col("opening") + f.col("area") / (end - start)).alias("size_mean"),
            (f.col("opening") + rise).cast("bigint").alias("size_max"),
        )
    )


_BUCKET_OF_PARTS = {"change": f.sum, "area": f.sum, "rise": f.max, "left_us": f.max}

"""How many operations waited at each time: the size of a purgatory as a step function.

The size goes up by one when an operation starts to wait and down by one when its wait ends; one
that was completed at once was never in. A wait covers its start and not its end. From these steps
each bucket of time gets the mean over the time in it and the highest size in it, both exact: a
peak of one microsecond shows in the maximum of its bucket.

No step needs a whole run in one task. A bucket's size at its start is the sum of all changes
before it, which is computed from one sum per bucket; within a bucket the steps are then
added up apart from all other buckets.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

MOST_POINTS = 400
"""The most buckets that a run is cut into; fewer than 2/5 of that only if it is that short."""

SERIES = ["run_id", "purgatory", "broker"]
"""The columns that tell one step function from another."""

_BUCKET = [*SERIES, "bucket"]


def bucket_width_us(duration_us: int) -> int:
    """The width of a run's buckets: 1, 2 or 5 times a power of ten, at most `MOST_POINTS` of them.

    Args:
        duration_us: the length of the run, in microseconds.
    """
    unit = 1
    while True:
        for factor in (1, 2, 5):
            if factor * unit * MOST_POINTS >= duration_us:
                return factor * unit
        unit *= 10


def occupancy(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """The table `occupancy`: a row per run, purgatory, broker and bucket of time.

    A broker of null stands for all brokers together. Every bucket from 0 to the end of the run has
    its row, also where nothing waited.

    Args:
        operations: the trace's table of that name.
        spans: `run_id`, `end_us` (where the run ends) and `width_us` (of its buckets), a row per
            run; small.
    """
    placed = (
        operations.select("run_id", "purgatory", "broker", "start_us", "end_us", "outcome")
        .withColumnRenamed("end_us", "wait_end_us")
        .join(f.broadcast(spans), "run_id")
        .withColumn("broker", f.explode(f.array("broker", f.lit(None).cast("int"))))
    )
    changes = _changes(placed)
    steps = (
        changes.unionByName(_openings(placed, changes))
        .groupBy(*_BUCKET, "at_us")
        .agg(
            f.sum("change").alias("change"),
            f.max("end_us").alias("end_us"),
            f.max("width_us").alias("width_us"),
        )
    )
    return _buckets(steps)


def _changes(placed: DataFrame) -> DataFrame:
    """By how much the size changes at each time at which it does."""
    goes_in = f.struct(f.col("start_us").alias("at_us"), f.lit(1).alias("by"))
    goes_out = f.struct(f.col("wait_end_us").alias("at_us"), f.lit(-1).alias("by"))
    return (
        placed.where("outcome != 'immediate'")
        .select(
            *SERIES,
            "end_us",
            "width_us",
            f.explode(
                f.when(f.col("outcome") == "pending", f.array(goes_in)).otherwise(
                    f.array(goes_in, goes_out)
                )
            ).alias("event"),
        )
        .withColumn("at_us", f.col("event.at_us"))
        .where("at_us < end_us")
        .withColumn("bucket", f.expr("at_us div width_us"))
        .groupBy(*_BUCKET, "at_us", "end_us", "width_us")
        .agg(f.sum("event.by").alias("change"))
    )


def _openings(placed: DataFrame, changes: DataFrame) -> DataFrame:
    """The size at the start of every bucket of every series, as a change at that time."""
    empty_buckets = (
        placed.select(*SERIES, "end_us", "width_us")
        .distinct()
        .where("end_us > 0")
        .withColumn("bucket", f.explode(f.expr("sequence(0, (end_us - 1) div width_us)")))
        .withColumn("change", f.lit(0).cast("bigint"))
    )
    earlier = (
        Window.partitionBy(*SERIES).orderBy("bucket").rowsBetween(Window.unboundedPreceding, -1)
    )
    return (
        empty_buckets.unionByName(changes.drop("at_us"))
        .groupBy(*_BUCKET, "end_us", "width_us")
        .agg(f.sum("change").alias("in_bucket"))
        .withColumn("change", f.coalesce(f.sum("in_bucket").over(earlier), f.lit(0)))
        .withColumn("at_us", f.col("bucket") * f.col("width_us"))
        .drop("in_bucket")
    )


def _buckets(steps: DataFrame) -> DataFrame:
    """Mean and maximum of each bucket, of which every one has a step at its start."""
    within = Window.partitionBy(*_BUCKET).orderBy("at_us")
    so_far = within.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    bucket_end = f.least((f.col("bucket") + 1) * f.col("width_us"), f.col("end_us"))
    return (
        steps.withColumn("bucket_end_us", bucket_end)
        .withColumn("size", f.sum("change").over(so_far))
        .withColumn(
            "lasts_us",
            f.coalesce(f.lead("at_us").over(within), f.col("bucket_end_us")) - f.col("at_us"),
        )
        .groupBy(*_BUCKET, "bucket_end_us")
        .agg(
            f.min("at_us").alias("bucket_start_us"),
            f.sum(f.col("size") * f.col("lasts_us")).alias("weighted"),
            f.max("size").alias("size_max"),
        )
        .select(
            *SERIES,
            "bucket_start_us",
            "bucket_end_us",
            (f.col("weighted") / (f.col("bucket_end_us") - f.col("bucket_start_us"))).alias(
                "size_mean"
            ),
            "size_max",
        )
    )

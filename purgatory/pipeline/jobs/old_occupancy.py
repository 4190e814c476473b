"""The number of parked operations over time: the size of a purgatory as a step function.

The size rises by one when an operation starts to wait, and falls by one when its wait ends;
immediate operations do not count. A wait includes its start, and not its end. Each bucket of time
has the exact mean and maximum: a peak of one microsecond is in the maximum of its bucket.

No step needs a whole run in one task. The starts and ends in one run, purgatory and bucket are one
task, which sums them in the order of time, and finds how far the size rose above that at the start
of the bucket. That one is the sum of all earlier changes, one sum per bucket.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.expressions import broadcast, watch_keys
from purgatory.pipeline.jobs.result_orders import check_number

SERIES = ["run_id", "purgatory", "broker"]
"""The columns that identify a step function."""

_WHOLE = ["run_id", "purgatory"]


def occupancy(operations: DataFrame, spans: DataFrame) -> DataFrame:
    """The table `occupancy`: a row per run, purgatory, broker and bucket of time.

    A broker of null stands for all brokers. Every bucket from 0 to the end of the run has a row,
    also without parked operations.

    O(operations), and a sort of the starts and ends in each bucket.

    Args:
        operations: the trace's table of that name.
        spans: `run_id`, `end_us` (where the run ends) and `width_us` (of its buckets), a row per
            run; small.
    """
    intervals = operations.select(*SERIES, "start_us", "end_us", "outcome")
    by_broker = _rises(changes(intervals, spans, SERIES))
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
    return bucket_sizes(
        by_broker.drop("whole_rise").unionByName(whole),
        brokers.unionByName(series),
        spans,
        SERIES,
    )


def changes(operations: DataFrame, spans: DataFrame, series: Sequence[str]) -> DataFrame:
    """The changes of the size at each start and end of a wait, with their buckets.

    Returns:
        The columns of `series`, `at_us`, `bucket`, `change`, and `left_us`: from then to the end of
        the bucket. Nothing from the end of a run on.

    Args:
        operations: `start_us`, `end_us`, `outcome` of operations, and the columns of `series`.
        spans: as of `occupancy`.
        series: the columns that identify a step function; one is `run_id`.
    """
    arrival = f.struct(f.col("start_us").alias("at_us"), f.lit(1).cast("bigint").alias("change"))
    departure = f.struct(
        f.col("wait_end_us").alias("at_us"), f.lit(-1).cast("bigint").alias("change")
    )
    pending = f.col("outcome") == "pending"
    return (
        operations.where("outcome != 'immediate'")
        .withColumnRenamed("end_us", "wait_end_us")
        .select(
            *series,
            f.explode(
                f.when(pending, f.array(arrival)).otherwise(f.array(arrival, departure))
            ).alias("step"),
        )
        .select(*series, *(f.col(f"step.{name}").alias(name) for name in ("at_us", "change")))
        .join(broadcast(spans), "run_id")
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
    return sum_changes(
        steps.repartition(*bucket)
        .withColumn("rise", f.sum("change").over(own))
        .withColumn("whole_rise", f.sum("change").over(whole)),
        [*bucket, "broker"],
        f.max("whole_rise").alias("whole_rise"),
    )


def sum_changes(rises: DataFrame, by: Sequence[str], *more: Column) -> DataFrame:
    """A row per series and bucket, of steps that have their `rise`."""
    return rises.groupBy(*by).agg(
        f.sum("change").alias("change"),
        f.sum(f.col("change") * f.col("left_us")).alias("area"),
        f.max("rise").alias("rise"),
        f.max("left_us").alias("left_us"),
        *more,
    )


def bucket_sizes(
    rises: DataFrame, series: DataFrame, spans: DataFrame, names: Sequence[str]
) -> DataFrame:
    """Mean and maximum in each bucket of each series, those included in which nothing changed.

    Args:
        rises: what `sum_changes` returns.
        series: all series, a row each; few.
        spans: as `occupancy` takes them.
        names: the columns that tell one series from another.
    """
    every_bucket = (
        series.join(broadcast(spans), "run_id")
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
        .join(broadcast(spans), "run_id")
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


# Little's law in a trace: the mean size is the rate of arrivals times the mean wait.
#
# Both sides are computed independently: the mean size from the sweep over starts and ends, the rest
# from the operations. They are equal if no operation is parked at the end of the run. The waits of
# those that are, are unknown, and not part of the mean wait: that explains a discrepancy, and the
# table has how much of it. An unexplained rest is an error in the trace or in the sweep.


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
        .select(*(f.col(f"swept.{name}") for name in SERIES), "area_us", *_SUMS)
        .join(broadcast(spans), "run_id")
        .withColumn("mean_wait_us", f.try_divide("settled_wait_us", "settled"))
        .withColumn("mean_parked", f.col("area_us") / f.col("end_us"))
        .withColumn("arrivals_per_s", f.col("entries") / run_s)
        .withColumn(
            "arrivals_times_wait", f.col("entries") * f.col("mean_wait_us") / f.col("end_us")
        )
        .withColumn("discrepancy", f.col("arrivals_times_wait") - f.col("mean_parked"))
    )
    # Little's law with each wait clipped to the run.
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


_SUMS = ["entries", "pending", "settled", "settled_wait_us", "wait_in_run_us"]


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
            broadcast(spans.select("run_id", f.col("end_us").alias("run_end_us"))),
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
        .agg(*(f.sum(name).cast("bigint").alias(name) for name in _SUMS))
        .withColumn("broker", f.lit(None).cast("int"))
    )


# The keys on which most operations were parked.


KEY_SERIES = ["run_id", "purgatory", "key"]
"""The columns that identify the step function of a key."""


def hot_keys(operations: DataFrame, spans: DataFrame, number: int = 10) -> DataFrame:
    """The table `hot_keys`: for each run and purgatory, the keys with the highest mean size.

    An operation with several keys counts under each. A trace without keys has no rows.
    O(operations times their keys).

    Args:
        operations: the trace's table of that name.
        spans: as `occupancy` takes them.
        number: how many of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    until = f.when(f.col("outcome") == "pending", f.col("run_end_us")).otherwise(
        f.least("end_us", "run_end_us")
    )
    keys = (
        _by_key(operations)
        .join(
            broadcast(spans.select("run_id", f.col("end_us").alias("run_end_us"))),
            "run_id",
        )
        .withColumn("parked_us", f.greatest(until - f.col("start_us"), f.lit(0)))
        .groupBy(*KEY_SERIES)
        .agg(
            f.count(f.lit(1)).alias("entries"),
            f.count_if(f.col("outcome") == "expired").cast("bigint").alias("expired"),
            f.sum("parked_us").alias("parked_us"),
            f.max("parked_us").alias("wait_max_us"),
            f.max("run_end_us").alias("run_end_us"),
        )
        .withColumn("mean_parked", f.try_divide("parked_us", "run_end_us"))
    )
    order = Window.partitionBy("run_id", "purgatory").orderBy(f.col("parked_us").desc(), "key")
    return (
        keys.withColumn("rank", f.row_number().over(order).cast("int"))
        .where(f.col("rank") <= number)
        .select(
            "run_id",
            "purgatory",
            "rank",
            "key",
            "entries",
            "expired",
            "mean_parked",
            f.try_divide("parked_us", "entries").alias("wait_mean_us"),
            "wait_max_us",
        )
    )


def occupancy_of_keys(operations: DataFrame, spans: DataFrame, keys: DataFrame) -> DataFrame:
    """The table `key_occupancy`: like `occupancy`, a row per run, purgatory, key and bucket.

    O(operations times their keys), and a sort of the starts and ends of each key in each bucket.

    Args:
        operations: the trace's table of that name.
        spans: as `occupancy` takes them.
        keys: `run_id`, `purgatory` and `key` of the keys that are wanted, such as the table
            `hot_keys`; few.
    """
    wanted = keys.select(*KEY_SERIES).distinct()
    steps = changes(_by_key(operations).join(broadcast(wanted), KEY_SERIES), spans, KEY_SERIES)
    bucket = [*KEY_SERIES, "bucket"]
    risen = Window.partitionBy(*bucket).orderBy("at_us")
    rises = sum_changes(steps.withColumn("rise", f.sum("change").over(risen)), bucket)
    return bucket_sizes(rises, wanted, spans, KEY_SERIES)


def _by_key(operations: DataFrame) -> DataFrame:
    """The operations that waited, each once for each of its different keys."""
    return operations.where("outcome != 'immediate'").select(
        "run_id",
        "purgatory",
        "start_us",
        "end_us",
        "outcome",
        f.explode(f.array_distinct(watch_keys(operations))).alias("key"),
    )

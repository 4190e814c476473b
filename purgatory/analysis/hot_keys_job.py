"""The keys on which most operations were parked."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.engines import small
from purgatory.analysis.occupancy_job import aggregated, changes, in_buckets
from purgatory.analysis.waiting_words import check_number
from purgatory.analysis.watched import watch_keys

KEY_SERIES = ["run_id", "purgatory", "key"]
"""The columns that tell the step function of one key from another."""


def hot_keys(operations: DataFrame, spans: DataFrame, number: int = 10) -> DataFrame:
    """The table `hot_keys`: for each run and purgatory, the keys with the highest mean size.

    An operation that is watched under several keys counts on each. Without keys in the trace, there
    are no rows. O(operations times their keys).

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
            small(spans.select("run_id", f.col("end_us").alias("run_end_us"))),
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
    steps = changes(_by_key(operations).join(small(wanted), KEY_SERIES), spans, KEY_SERIES)
    bucket = [*KEY_SERIES, "bucket"]
    risen = Window.partitionBy(*bucket).orderBy("at_us")
    rises = aggregated(steps.withColumn("rise", f.sum("change").over(risen)), bucket)
    return in_buckets(rises, wanted, spans, KEY_SERIES)


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

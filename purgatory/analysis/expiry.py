"""Which operations expired: by broker and by what they were watched under."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.analysis_words import MOST_KEYS, check_keys
from purgatory.analysis.engines import small
from purgatory.analysis.watched import watch_keys

_SERIES = ["run_id", "purgatory", "broker", "watch_key"]


def expiry(operations: DataFrame, most_keys: int = MOST_KEYS) -> DataFrame:
    """The table `expiry`: a row per run, purgatory, broker and key that operations waited under.

    A key of null stands for all operations of the broker, which is all there is where the trace
    tells no keys. An operation under several keys counts under each. Immediate operations never
    waited and count nowhere; pending ones may expire yet, and don't count either.

    Shuffles one row per series and task; the keys of a run are ranked by the sum of their series,
    so the sort of one task holds as many rows as a run has keys.

    Args:
        operations: the trace's table of that name.
        most_keys: how many keys of each run are kept, those with the most expired operations first.

    Raises:
        ValueError: `most_keys` is negative.
    """
    check_keys(most_keys)
    everything = f.array(f.lit(None).cast("string"))
    own = f.array_distinct(watch_keys(operations))
    under = f.coalesce(f.concat(everything, own), everything)
    counted = (
        operations.where("outcome not in ('immediate', 'pending')")
        .select(*_SERIES[:-1], "outcome", "start_us", "end_us", f.explode(under).alias("watch_key"))
        .groupBy(*_SERIES)
        .agg(
            f.count(f.lit(1)).alias("operations"),
            f.count_if(f.col("outcome") == "expired").cast("bigint").alias("expired"),
            f.min(f.when(f.col("outcome") == "expired", f.col("start_us"))).alias("from_us"),
            f.max(f.when(f.col("outcome") == "expired", f.col("end_us"))).alias("until_us"),
        )
    )
    first = Window.partitionBy("run_id").orderBy(
        f.col("of_expired").desc(), f.col("of_all").desc(), "watch_key"
    )
    keys = (
        counted.where("watch_key is not null")
        .groupBy("run_id", "watch_key")
        .agg(f.sum("expired").alias("of_expired"), f.sum("operations").alias("of_all"))
        .withColumn("place", f.row_number().over(first))
        .where(f.col("place") <= most_keys)
        .select("run_id", "watch_key", f.lit(True).alias("kept"))
    )
    return (
        counted.join(small(keys), ["run_id", "watch_key"], "left")
        .where("kept or watch_key is null")
        .select(
            *_SERIES,
            "operations",
            "expired",
            (f.col("expired") / f.col("operations")).alias("expiry_ratio"),
            "from_us",
            "until_us",
        )
    )

"""The peaks of parked operations, and their causes.

A peak is the maximum of a bucket that no bucket around it exceeds. For the highest of each run and
purgatory, the parked operations are counted by kind, outcome, broker and key; the table also has
the arrivals just before, and the active faults.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs.expressions import broadcast, watch_keys
from purgatory.pipeline.jobs.old_occupancy import changes
from purgatory.pipeline.jobs.result_orders import check_number

MOST_NAMED = 5
"""The most kinds, outcomes, brokers and keys of a peak, in the order of their counts."""

BUCKETS_APART = 20
"""The least distance of two peaks; a run has 160 to 400 buckets, unless it is very short."""

_WHOLE = ["run_id", "purgatory"]
_PEAK = [*_WHOLE, "rank"]
_NAME_ARRAYS = ("kinds", "outcomes", "brokers", "keys")


def peaks(
    operations: DataFrame,
    occupancy: DataFrame,
    spans: DataFrame,
    faults: DataFrame | None = None,
    number: int = 3,
) -> DataFrame:
    """The table `peaks`: for each run and purgatory, the highest peaks and what was parked then.

    O(operations): it looks at all of them once more, and sorts those in the buckets of the peaks.

    Args:
        operations: the trace's table of that name.
        occupancy: the table that the function of that name makes of them.
        spans: as `occupancy` takes them.
        faults: `run_id`, `kind`, `broker`, `from_us` and `until_us` (null: to the end of the run),
            a row per fault; few. None where nothing is known of faults.
        number: how many peaks of each run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    found = _moments(operations, _highest(occupancy, number), spans)
    around = _nearby_operations(operations, found)
    named = _top_names(around.where("parked"))
    counts = around.groupBy(*_PEAK).agg(
        f.count_if("arrived").cast("bigint").alias("arrivals"),
        f.min(f.when(f.col("parked"), f.col("start_us"))).alias("oldest_start_us"),
    )
    waited = operations.where("outcome != 'immediate'")
    entries = waited.groupBy(*_WHOLE).agg(f.count(f.lit(1)).alias("entries"))
    result = (
        found.join(counts, _PEAK, "left").join(named, _PEAK, "left").join(entries, _WHOLE, "left")
    )
    return _with_faults(result, faults).select(
        *_PEAK,
        "at_us",
        "size",
        (f.col("at_us") - f.col("oldest_start_us")).alias("oldest_us"),
        f.col("looked_back_us").alias("before_us"),
        f.coalesce("arrivals", f.lit(0)).alias("arrivals_before"),
        (f.col("entries") * f.col("looked_back_us") / f.col("end_us")).alias("arrivals_usual"),
        *_NAME_ARRAYS,
        "faults",
    )


def _highest(occupancy: DataFrame, number: int) -> DataFrame:
    """The buckets with the highest local maxima over all brokers."""
    in_time = Window.partitionBy(*_WHOLE).orderBy("bucket_start_us")
    before = f.max("size_max").over(in_time.rowsBetween(-BUCKETS_APART, -1))
    after = f.max("size_max").over(in_time.rowsBetween(1, BUCKETS_APART))
    highest = Window.partitionBy(*_WHOLE).orderBy(f.col("size_max").desc(), "bucket_start_us")
    return (
        occupancy.where("broker is null")
        .withColumn("before", f.coalesce(before, f.lit(0)))
        .withColumn("after", f.coalesce(after, f.lit(0)))
        .where("size_max > before and size_max >= after")
        .withColumn("rank", f.row_number().over(highest).cast("int"))
        .where(f.col("rank") <= number)
        .select(*_PEAK, "bucket_start_us", f.col("size_max").alias("size"))
    )


def _moments(operations: DataFrame, highest: DataFrame, spans: DataFrame) -> DataFrame:
    """The first time in each of these buckets at which the size is the bucket's maximum.

    That is the first at which the size rose furthest over what it was at the start of the bucket,
    or the start itself if it only fell from there.
    """
    wanted = highest.join(broadcast(spans), "run_id").withColumn(
        "bucket", f.expr("bucket_start_us div width_us")
    )
    # The changes of one bucket of one run and purgatory go to one task, like in the sweep.
    so_far = Window.partitionBy(*_PEAK).orderBy("at_us")
    risen = (
        changes(
            operations.select(*_WHOLE, "start_us", "end_us", "outcome"),
            spans,
            _WHOLE,
        )
        .join(broadcast(wanted.select(*_PEAK, "bucket", "bucket_start_us")), [*_WHOLE, "bucket"])
        .withColumn("rise", f.sum("change").over(so_far))
    )
    times = risen.groupBy(*_PEAK).agg(
        f.max(f.struct("rise", (-f.col("at_us")).alias("minus_at_us"))).alias("top"),
        f.min("at_us").alias("first_us"),
        f.max("bucket_start_us").alias("start_us"),
    )
    only_fell = f.col("top.rise").isNull() | (
        (f.col("top.rise") <= 0) & (f.col("first_us") > f.col("start_us"))
    )
    return (
        wanted.join(times, _PEAK, "left")
        .select(
            *_PEAK,
            "size",
            f.when(only_fell, f.col("bucket_start_us"))
            .otherwise(-f.col("top.minus_at_us"))
            .alias("at_us"),
            # As far back as a bucket is wide, or to the start of the run.
            f.col("width_us"),
            "end_us",
        )
        .withColumn("looked_back_us", f.least("width_us", "at_us"))
    )


def _nearby_operations(operations: DataFrame, found: DataFrame) -> DataFrame:
    """The operations parked at a peak, and those that came shortly before it, once per peak."""
    waited = operations.where("outcome != 'immediate'").select(
        *_WHOLE,
        "broker",
        "kind",
        "outcome",
        "start_us",
        f.col("end_us").alias("wait_end_us"),
        watch_keys(operations).alias("watch_keys"),
    )
    moments = found.select(*_PEAK, "at_us", "looked_back_us")
    started = f.col("start_us") <= f.col("at_us")
    goes_on = (f.col("wait_end_us") > f.col("at_us")) | (f.col("outcome") == "pending")
    arrived = started & (f.col("start_us") > f.col("at_us") - f.col("looked_back_us"))
    return (
        waited.join(broadcast(moments), _WHOLE)
        .withColumn("parked", started & goes_on)
        .withColumn("arrived", arrived)
        .where("parked or arrived")
    )


def _top_names(parked: DataFrame) -> DataFrame:
    """Per peak, an array for each of kinds, outcomes, brokers and keys: names and counts."""
    keys = f.transform(
        f.coalesce(f.array_distinct("watch_keys"), f.array([]).cast("array<string>")),
        lambda key: f.struct(f.lit("keys").alias("what"), key.alias("name")),
    )
    single = f.array(
        *(
            f.struct(f.lit(what).alias("what"), f.col(column).cast("string").alias("name"))
            for what, column in (("kinds", "kind"), ("outcomes", "outcome"), ("brokers", "broker"))
        )
    )
    order = Window.partitionBy(*_PEAK, "what").orderBy(f.col("parked").desc(), "name")
    counted = (
        parked.select(*_PEAK, f.explode(f.concat(single, keys)).alias("one"))
        .select(*_PEAK, *(f.col(f"one.{name}").alias(name) for name in ("what", "name")))
        .groupBy(*_PEAK, "what", "name")
        .agg(f.count(f.lit(1)).alias("parked"))
        .withColumn("place", f.row_number().over(order))
        .where(f.col("place") <= MOST_NAMED)
    )
    return counted.groupBy(*_PEAK).agg(*(_top_names_array(what) for what in _NAME_ARRAYS))


def _top_names_array(what: str) -> Column:
    """At most `MOST_NAMED` names with their counts, in order."""
    chosen = f.when(f.col("what") == what, f.struct("place", "name", "parked"))
    in_order = f.array_sort(f.array_compact(f.collect_list(chosen)))
    shown = ("name", "parked")
    return f.transform(
        in_order, lambda one: f.struct(*(one[name].alias(name) for name in shown))
    ).alias(what)


def _with_faults(found: DataFrame, faults: DataFrame | None) -> DataFrame:
    """The faults at work at the peak or shortly before it, as texts such as `stall_follower 2`."""
    if faults is None:
        return found.withColumn("faults", f.lit(None).cast("array<string>"))
    text = f.concat_ws(" ", "kind", f.col("broker").cast("string"))
    begun = f.col("from_us") <= f.col("at_us")
    not_over = f.coalesce("until_us", "at_us") >= f.col("at_us") - f.col("looked_back_us")
    at_work = (
        found.select(*_PEAK, "at_us", "looked_back_us")
        .join(broadcast(faults), "run_id")
        .where(begun & not_over)
        .groupBy(*_PEAK)
        .agg(f.array_sort(f.collect_set(text)).alias("faults"))
    )
    return found.join(at_work, _PEAK, "left").withColumn(
        "faults", f.coalesce("faults", f.array([]).cast("array<string>"))
    )

"""How long operations waited: counts, shares and percentiles per run, purgatory and outcome.

A percentile is either exact, or computed from rounded waits (`rounded_waits`), of which there are
some ten thousand in a group, whatever the number of operations.

Spark's own `percentile` keeps the different waits of a group in the memory of one task. Exact ones
are computed without it: operations are counted by wait; the counts are summed over all kinds and
over all outcomes; and a running sum over the distinct waits of a group gives the rank of each. So a
task sorts at most a group's distinct waits, at most as many as its longest wait has microseconds.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column, DataFrame, GroupedData, Window
from pyspark.sql import functions as f

from purgatory.pipeline.jobs import expressions as engines
from purgatory.pipeline.jobs.expressions import broadcast, topics, watch_keys
from purgatory.pipeline.jobs.result_orders import (
    ALL,
    ALL_TOPICS,
    MOST_KEYS,
    Exactness,
    check_number,
    check_waits,
)
from purgatory.trace.percentiles import DECIMALS, PERCENTILES
from purgatory.trace.rounded_waits import round_column

_GROUP = ["run_id", "window_start_us", "purgatory", "topic"]
_ROW = [*_GROUP, "all_kinds", "kind", "all_outcomes", "outcome"]


def waits(
    operations: DataFrame,
    *,
    window_us: int | None = None,
    by_topic: bool = False,
    percentiles: Exactness = "exact",
) -> DataFrame:
    """The table `waits`: a row per run, purgatory, kind and outcome, and rows over all of each.

    The waits of a row over all outcomes are those of settled operations. Operations that were
    pending at the end of the run are counted, and have their waits so far in a row of their own.

    O(operations), and a sort of the different waits of each row of the result.

    Args:
        operations: the trace's table of that name.
        window_us: the length of the windows of time, in microseconds; each row is then of the
            operations that started in one of them. None: the whole run.
        by_topic: also rows per topic. An operation on several topics counts in the rows of each,
            and once in those over all topics; one without keys counts under a topic of null.
        percentiles: `approximate` is up to 0.1 % too small (`rounded_waits`), and faster with
            many long waits.

    Raises:
        ValueError: `window_us` is not positive, or `percentiles` is invalid.
    """
    check_waits(window_us, percentiles)
    window: Column = f.lit(None).cast("bigint")
    if window_us is not None:
        window = f.col("start_us") - f.col("start_us") % window_us
    exact, wait_us = percentiles == "exact", f.col("wait_us")
    rows = operations.select(
        "run_id",
        window.alias("window_start_us"),
        "purgatory",
        "kind",
        "outcome",
        *([topics(operations).alias("topics")] if by_topic else []),
        (wait_us if exact else round_column(wait_us)).alias("value"),
        "wait_us",
    )
    if not exact or engines.EXACT_IN_MEMORY or engines.has_few_rows(operations.sparkSession):
        summaries = _summarize(_explode_topics(rows), exact)
    else:
        summaries = _summarize_counts(_add_totals(_explode_topics(_count_waits(rows))))
    return _result(summaries, window_us)


def _explode_topics(rows: DataFrame) -> DataFrame:
    """A row for all topics, and, where there is an array of them, for each of it."""
    if "topics" not in rows.columns:
        return rows.withColumn("topic", f.lit(ALL_TOPICS))
    unknown = f.array(f.lit(None).cast("string"))
    names = f.concat(f.array(f.lit(ALL_TOPICS)), f.coalesce("topics", unknown))
    return rows.withColumn("topic", f.explode(names)).drop("topics")


def _group_by_totals(rows: DataFrame, *more: str) -> GroupedData:
    """Groups of each kind and outcome, over all kinds, over all outcomes, and over all of both."""
    kind, outcome = ["kind"], ["outcome"]
    return rows.groupingSets(
        [[*_GROUP, *names, *more] for names in (kind + outcome, kind, outcome, [])],
        *_GROUP,
        *kind,
        *outcome,
        *more,
    )


def _all_kinds_and_outcomes() -> list[Column]:
    return [f.grouping(column).alias(f"all_{column}s") for column in ("kind", "outcome")]


def _effective(column: str) -> Column:
    """That of the settled operations; in a row of pending operations, of the pending ones."""
    pending, settled = f.col(f"pending_{column}"), f.col(f"settled_{column}")
    return f.when(f.col("outcome") == "pending", pending).otherwise(settled).alias(column)


# In memory.


def _summarize(rows: DataFrame, exact: bool) -> DataFrame:
    """A row per group, with its percentiles, by the engine's own function."""
    pending = f.col("outcome") == "pending"
    for name, of in (("settled", ~pending), ("pending", pending)):
        for column in ("wait_us", "value"):
            rows = rows.withColumn(f"{name}_{column}", f.when(of, f.col(column)))
    shares = list(PERCENTILES.values())
    summaries = (
        _group_by_totals(rows.withColumn("expired", f.when(f.col("outcome") == "expired", 1)))
        .agg(
            *_all_kinds_and_outcomes(),
            f.count(f.lit(1)).alias("operations"),
            f.count("expired").alias("expired"),
            *(
                column
                for of in ("settled", "pending")
                for column in (
                    f.count(f"{of}_wait_us").alias(f"{of}_total"),
                    f.sum(f"{of}_wait_us").alias(f"{of}_sum_us"),
                    f.max(f"{of}_wait_us").alias(f"{of}_max_us"),
                    f.percentile(f"{of}_value", shares).alias(f"{of}_values"),
                )
            ),
        )
        .select(
            *_ROW,
            "operations",
            "expired",
            "settled_total",
            *map(_effective, ("total", "sum_us", "max_us", "values")),
        )
    )
    # The last rank is the exact maximum, also of rounded waits.
    last = f.col("total") - 1
    lacks_us = f.col("max_us") - round_column(f.col("max_us"))
    for place, (name, share) in enumerate(PERCENTILES.items(), 1):
        weight = f.when(last == 0, 1.0).otherwise(f.greatest(_rank(share) - last + 1, f.lit(0.0)))
        value = f.element_at("values", place)
        summaries = summaries.withColumn(name, value if exact else value + lacks_us * weight)
    return summaries


# By counting.


def _count_waits(rows: DataFrame) -> DataFrame:
    """The number of operations by wait, with the sum and the maximum of the waits."""
    return rows.groupBy(*(column for column in rows.columns if column != "wait_us")).agg(
        f.count(f.lit(1)).alias("number"),
        f.sum("wait_us").alias("sum_us"),
        f.max("wait_us").alias("max_us"),
    )


def _add_totals(counts: DataFrame) -> DataFrame:
    """Add the counts over all kinds and over all outcomes; settled and pending separately."""
    pending = f.col("outcome") == "pending"
    counts = (
        counts.withColumn("settled", f.when(~pending, f.struct("number", "sum_us", "max_us")))
        .withColumn("pending", f.when(pending, f.struct("number", "sum_us", "max_us")))
        .withColumn("expired", f.when(f.col("outcome") == "expired", f.col("number")))
    )
    return (
        _group_by_totals(counts, "value")
        .agg(
            *_all_kinds_and_outcomes(),
            f.sum("number").alias("operations"),
            f.sum("expired").alias("expired"),
            *(
                how(f"{of}.{what}").alias(f"{of}_{what}")
                for of in ("settled", "pending")
                for what, how in (("number", f.sum), ("sum_us", f.sum), ("max_us", f.max))
            ),
        )
        .select(
            *_ROW,
            "value",
            "operations",
            "expired",
            "settled_number",
            *map(_effective, ("number", "sum_us", "max_us")),
        )
    )


def _summarize_counts(counts: DataFrame) -> DataFrame:
    """A row per group, with the percentiles between the waits at the ranks around each."""
    of_group = Window.partitionBy(*_ROW).orderBy("value")
    earlier = of_group.rowsBetween(Window.unboundedPreceding, -1)
    every = of_group.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    first_rank = f.coalesce(f.sum("number").over(earlier), f.lit(0))
    summaries = (
        counts.withColumn("first_rank", first_rank)
        .withColumn("total", f.sum("number").over(every))
        .groupBy(*_ROW)
        .agg(
            f.sum("operations").alias("operations"),
            f.sum("expired").alias("expired"),
            f.sum("settled_number").alias("settled_total"),
            f.sum("number").alias("total"),
            f.sum("sum_us").alias("sum_us"),
            f.max("max_us").alias("max_us"),
            *(
                f.max(f.when(_has_rank(f.least(number, f.col("total") - 1)), f.col("value"))).alias(
                    f"{name}_{which}"
                )
                for name, share in PERCENTILES.items()
                for which, number in (
                    ("low", f.floor(_rank(share))),
                    ("high", f.floor(_rank(share)) + 1),
                )
            ),
        )
    )
    for name, share in PERCENTILES.items():
        low, high, rank = f.col(f"{name}_low"), f.col(f"{name}_high"), _rank(share)
        summaries = summaries.withColumn(name, low + (high - low) * (rank - f.floor(rank)))
    return summaries


def _has_rank(number: Column) -> Column:
    return (number >= f.col("first_rank")) & (number < f.col("first_rank") + f.col("number"))


def _rank(share: float) -> Column:
    """The rank of a share in its group, from 0; fractional between two ranks."""
    return f.lit(share).cast("double") * (f.col("total") - 1)


def _result(summaries: DataFrame, window_us: int | None) -> DataFrame:
    # The row over all outcomes has the most operations of its purgatory, topic and kind.
    of_all = f.max("operations").over(Window.partitionBy(*_GROUP, "all_kinds", "kind"))
    ratio = f.try_divide(f.coalesce("expired", f.lit(0)), f.col("settled_total"))
    window_end = (
        f.lit(None).cast("bigint") if window_us is None else f.col("window_start_us") + window_us
    )
    return summaries.withColumn("share", f.col("operations") / of_all).select(
        "run_id",
        "window_start_us",
        window_end.alias("window_end_us"),
        "purgatory",
        f.when(f.col("all_kinds") == 1, ALL).otherwise(f.col("kind")).alias("kind"),
        "topic",
        f.when(f.col("all_outcomes") == 1, ALL).otherwise(f.col("outcome")).alias("outcome"),
        f.col("operations").cast("bigint").alias("operations"),
        "share",
        f.when(f.col("all_outcomes") == 1, ratio).alias("expiry_ratio"),
        f.try_divide("sum_us", "total").alias("wait_mean_us"),
        *(f.round(name, DECIMALS).alias(name) for name in PERCENTILES),
        f.col("max_us").alias("wait_max_us"),
    )


# The distribution of waits: the number of operations per bin, with five bins per power of ten.
#
# Each bound is 1.58 times the one before, which is enough for a logarithmic axis, in some forty
# rows whatever the number of operations.


BINS_PER_POWER = 5
"""The number of bins per power of ten."""

_BOUNDS_US = [
    float(Decimal(10) ** Decimal(number / BINS_PER_POWER))
    for number in range(19 * BINS_PER_POWER + 1)
]
"""All bounds of waits in 64 bits: libraries disagree on the last digits of powers."""


def distribution(operations: DataFrame) -> DataFrame:
    """The table `distribution`: a row per run, purgatory, outcome and bin with operations in it.

    A bin has waits from `low_us` to below `high_us`. Immediate operations, which did not wait, and
    pending ones, whose waits are unknown, are left out.

    One pass and a shuffle of one row per bin and task.

    Args:
        operations: the trace's table of that name.
    """
    # A wait that rounds to 0 us counts as one of 1 us, as the axis has no place for it.
    wait_us = f.greatest(f.col("wait_us"), f.lit(1))
    # A bound such as 10^(1/5) is no whole number, so a wait is compared with the one above it.
    number = f.floor(f.log10(wait_us) * BINS_PER_POWER + f.lit(1e-9))
    return (
        operations.where("outcome not in ('immediate', 'pending')")
        .groupBy("run_id", "purgatory", "outcome", number.cast("int").alias("bin"))
        .agg(f.count(f.lit(1)).alias("operations"))
        .withColumn("bounds_us", f.array(*map(_double, _BOUNDS_US)))
        .select(
            "run_id",
            "purgatory",
            "outcome",
            _bound(0).alias("low_us"),
            _bound(1).alias("high_us"),
            "operations",
        )
    )


def _bound(further: int) -> Column:
    return f.element_at("bounds_us", f.col("bin") + 1 + further)


def _double(number: float) -> Column:
    """A literal of type double, not decimal, in both engines."""
    return f.lit(repr(number)).cast("double")


# Expired operations by broker and watch key.


_SERIES = ["run_id", "purgatory", "broker", "watch_key"]


def expiry(operations: DataFrame, most_keys: int = MOST_KEYS) -> DataFrame:
    """The table `expiry`: a row per run, purgatory, broker and key that operations waited under.

    A key of null stands for all operations of the broker, the only row in a trace without keys. An
    operation under several keys counts under each. Immediate and pending operations do not count.

    Shuffles one row per series and task; the keys of a run are ranked by the sum of their series,
    so the sort of one task holds as many rows as a run has keys.

    Args:
        operations: the trace's table of that name.
        most_keys: the number of keys per run, those with the most expired operations.
    """
    everything = f.array(f.lit(None).cast("string"))
    own = f.array_distinct(watch_keys(operations))
    under = f.coalesce(f.concat(everything, own), everything)
    counts = (
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
        counts.where("watch_key is not null")
        .groupBy("run_id", "watch_key")
        .agg(f.sum("expired").alias("of_expired"), f.sum("operations").alias("of_all"))
        .withColumn("place", f.row_number().over(first))
        .where(f.col("place") <= most_keys)
        .select("run_id", "watch_key", f.lit(True).alias("kept"))
    )
    return (
        counts.join(broadcast(keys), ["run_id", "watch_key"], "left")
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


# The operations with the longest waits, and their keys.


def slowest(operations: DataFrame, number: int = 10) -> DataFrame:
    """The table `slowest`: for each run and purgatory, the operations with the longest waits.

    Of equal waits, the earlier operation comes first. Pending ones have their waits so far.
    O(operations): each task keeps its own slowest before the shuffle.

    Args:
        operations: the trace's table of that name.
        number: per run and purgatory, at least 1.

    Raises:
        ValueError: a number below 1.
    """
    check_number(number)
    order = Window.partitionBy("run_id", "purgatory").orderBy(
        f.col("wait_us").desc(), "start_us", "operation"
    )
    return (
        operations.withColumn("rank", f.row_number().over(order).cast("int"))
        .where(f.col("rank") <= number)
        .select(
            "run_id",
            "purgatory",
            "rank",
            "operation",
            "broker",
            "kind",
            "outcome",
            "start_us",
            "end_us",
            "wait_us",
            "timeout_ms",
            watch_keys(operations).alias("watch_keys"),
        )
    )

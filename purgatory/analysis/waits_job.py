"""How long operations waited: counts, shares and percentiles per run, purgatory and outcome.

Percentiles are computed in three steps, none of which holds a group's waits in memory. Operations
are counted by how long they waited; the counts are added up over all kinds and over all outcomes;
and a running sum over the different waits of a group tells which wait has which rank. So the
longest work of one task is to sort a group's different waits, of which there are as many as its
longest wait has microseconds at most, however many operations there are.

A percentile is either exact, or computed from rounded waits (`rounded_waits`), which makes few
different waits of many.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.analysis.ranked_values import at_ranks, interpolated, rank, ranked
from purgatory.analysis.waiting_words import ALL, ALL_TOPICS, Exactness, check_waits
from purgatory.analysis.watched import topics
from purgatory.trace.percentiles import PERCENTILES
from purgatory.trace.rounded_waits import rounded_column

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

    The waits of a row over all outcomes are those of settled operations. One that was still
    pending when the run ended waited longer than the trace can tell; such are counted, and have
    their waits so far in a row of their own.

    O(operations), and a sort of the different waits of each row of the result.

    Args:
        operations: the trace's table of that name.
        window_us: the length of the windows of time, in microseconds; then each row is of the
            operations that started in one of them. None takes the whole run.
        by_topic: give rows of each topic, too. An operation on several topics counts in the rows
            of each, and once in those over all topics; one whose keys the trace does not tell
            counts under a topic of null.
        percentiles: `approximate` is up to 0.1 % too small (`rounded_waits`), and quicker where
            waits are long and many.

    Raises:
        ValueError: a window of no length, or a word for `percentiles` that has no meaning.
    """
    check_waits(window_us, percentiles)
    counts = _added_up(_counted(operations, window_us, by_topic, percentiles))
    return _result(_summaries(counts), window_us)


def _counted(
    operations: DataFrame, window_us: int | None, by_topic: bool, percentiles: Exactness
) -> DataFrame:
    """How many operations waited how long, and the sum and the longest of these waits."""
    wait_us = f.col("wait_us")
    window: Column = f.lit(None).cast("bigint")
    if window_us is not None:
        window = f.col("start_us") - f.col("start_us") % window_us
    counts = (
        operations.select(
            "run_id",
            window.alias("window_start_us"),
            "purgatory",
            "kind",
            "outcome",
            *([topics(operations).alias("topics")] if by_topic else []),
            (wait_us if percentiles == "exact" else rounded_column(wait_us)).alias("value"),
            "wait_us",
        )
        .groupBy(
            "run_id",
            "window_start_us",
            "purgatory",
            "kind",
            "outcome",
            *(["topics"] if by_topic else []),
            "value",
        )
        .agg(
            f.count(f.lit(1)).alias("number"),
            f.sum("wait_us").alias("sum_us"),
            f.max("wait_us").alias("max_us"),
        )
    )
    if not by_topic:
        return counts.withColumn("topic", f.lit(ALL_TOPICS))
    unknown = f.array(f.lit(None).cast("string"))
    both = f.concat(f.array(f.lit(ALL_TOPICS)), f.coalesce("topics", unknown))
    return counts.withColumn("topic", f.explode(both)).drop("topics")


def _added_up(counts: DataFrame) -> DataFrame:
    """The same over all kinds and over all outcomes, too; settled and pending apart."""
    pending = f.col("outcome") == "pending"
    return (
        counts.withColumn("settled", f.when(~pending, f.struct("number", "sum_us", "max_us")))
        .withColumn("pending", f.when(pending, f.struct("number", "sum_us", "max_us")))
        .withColumn("expired", f.when(f.col("outcome") == "expired", f.col("number")))
        .groupingSets(
            [
                [*_GROUP, "kind", "outcome", "value"],
                [*_GROUP, "kind", "value"],
                [*_GROUP, "outcome", "value"],
                [*_GROUP, "value"],
            ],
            *_GROUP,
            "kind",
            "outcome",
            "value",
        )
        .agg(
            f.grouping("kind").alias("all_kinds"),
            f.grouping("outcome").alias("all_outcomes"),
            f.sum("number").alias("operations"),
            f.sum("expired").alias("expired"),
            *(
                how(f"{of}.{what}").alias(f"{of}_{what}")
                for of in ("settled", "pending")
                for what, how in (("number", f.sum), ("sum_us", f.sum), ("max_us", f.max))
            ),
        )
        .select(
            *_ROW, "value", "operations", "expired", "settled_number", *map(_own, _OF_OWN_WAITS)
        )
    )


_OF_OWN_WAITS = ("number", "sum_us", "max_us")


def _own(what: str) -> Column:
    """What the waits of a row are taken from: the pending ones only where the row is of them."""
    pending, settled = f.col(f"pending_{what}"), f.col(f"settled_{what}")
    return f.when(f.col("outcome") == "pending", pending).otherwise(settled).alias(what)


def _summaries(counts: DataFrame) -> DataFrame:
    """A row per group, with the waits at the ranks that the percentiles lie between."""
    return (
        ranked(counts, _ROW)
        .groupBy(*_ROW)
        .agg(
            f.sum("operations").alias("operations"),
            f.sum("expired").alias("expired"),
            f.sum("settled_number").alias("settled_number"),
            f.sum("number").alias("total"),
            f.sum("sum_us").alias("sum_us"),
            f.max("max_us").alias("max_us"),
            *at_ranks(PERCENTILES),
        )
    )


def _result(summaries: DataFrame, window_us: int | None) -> DataFrame:
    # The row over all outcomes has the most operations of its purgatory, topic and kind.
    of_all = f.max("operations").over(Window.partitionBy(*_GROUP, "all_kinds", "kind"))
    ratio = f.try_divide(f.coalesce("expired", f.lit(0)), f.col("settled_number"))
    window_end = f.lit(None).cast("bigint") if window_us is None else _end(window_us)
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
        *(_interpolated(name, share).alias(name) for name, share in PERCENTILES.items()),
        f.col("max_us").alias("wait_max_us"),
    )


def _end(window_us: int) -> Column:
    return f.col("window_start_us") + window_us


def _interpolated(name: str, share: float) -> Column:
    """Between two neighbours in rank (`trace.percentiles`); the last is the longest as it was."""
    last, place = f.col("total") - 1, rank(share)
    longest = f.col("max_us")
    low = f.when(f.floor(place) >= last, longest).otherwise(f.col(f"{name}_low"))
    high = f.when(f.floor(place) + 1 >= last, longest).otherwise(f.col(f"{name}_high"))
    return interpolated(low, high, share)

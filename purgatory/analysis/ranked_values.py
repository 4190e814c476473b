"""Which values stand at some ranks, where it is counted how often each value came.

A running sum over the different values of a group tells which of them has which rank. A percentile
lies between the values at two ranks (`trace.percentiles`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f


def ranked(counts: DataFrame, group: Sequence[str]) -> DataFrame:
    """Counts with the rank of the first of each value, from 0, and the total of its group.

    A sort of the different values of each group.

    Args:
        counts: `value` and `number`, and the columns of `group`: a row per group and value.
        group: the columns that tell one group from another.
    """
    of_group = Window.partitionBy(*group)
    earlier = of_group.orderBy("value").rowsBetween(Window.unboundedPreceding, -1)
    return counts.withColumn(
        "first_rank", f.coalesce(f.sum("number").over(earlier), f.lit(0))
    ).withColumn("total", f.sum("number").over(of_group))


def at_ranks(shares: Mapping[str, float]) -> list[Column]:
    """For each share the values of a group that it lies between: its name with `_low`, `_high`.

    Args:
        shares: from 0 to 1, by their names.
    """
    found = []
    for name, share in shares.items():
        low = f.floor(rank(share))
        high = f.least(low + 1, f.col("total") - 1)
        found += [
            f.max(f.when(_has_rank(low), f.col("value"))).alias(f"{name}_low"),
            f.max(f.when(_has_rank(high), f.col("value"))).alias(f"{name}_high"),
        ]
    return found


def rank(share: float) -> Column:
    """Where a share lies among all of a group: between two ranks, or at one."""
    return f.lit(share).cast("double") * (f.col("total") - 1)


def interpolated(low: Column, high: Column, share: float) -> Column:
    """A percentile between the values at the ranks below and above it, as Spark has it."""
    place = rank(share)
    return low + (high - low) * (place - f.floor(place))


def _has_rank(number: Column) -> Column:
    return (number >= f.col("first_rank")) & (number < f.col("first_rank") + f.col("number"))

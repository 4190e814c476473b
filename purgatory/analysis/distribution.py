"""How waits are distributed: how many operations waited between two bounds, five per power of ten.

Five bounds per power of ten, each 1.58 times the one before, tell apart what a person sees on an
axis of powers of ten, in some forty rows whatever the number of operations.
"""

from __future__ import annotations

from decimal import Decimal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

BINS_PER_POWER = 5
"""How many bins a power of ten is cut into."""

_BOUNDS_US = [
    float(Decimal(10) ** Decimal(number / BINS_PER_POWER))
    for number in range(19 * BINS_PER_POWER + 1)
]
"""All bounds of waits in 64 bits: libraries don't agree on each last digit of a power."""


def distribution(operations: DataFrame) -> DataFrame:
    """The table `distribution`: a row per run, purgatory, outcome and bin with operations in it.

    A bin holds waits from `low_us` on and below `high_us`. Immediate operations did not wait and
    are left out, as are pending ones, whose waits nobody knows.

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
    """A number that no engine takes for a decimal."""
    return f.lit(repr(number)).cast("double")

"""Expressions that the jobs share, and hints that differ between the engines.

A job is written in PySpark's functions, those from which SQL for DuckDB can be generated:
`make sql` replaces `persist` and `materialize`, and sets `COUNTS_FIRST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.result_rows import Order


def broadcast(table: DataFrame) -> DataFrame:
    """A small table that Spark broadcasts when it is joined."""
    hint = getattr(f, "broadcast", None)
    return table if hint is None else hint(table)


def persist(table: DataFrame) -> DataFrame:
    """A table that is computed once, though it is read several times."""
    return table.persist()


def materialize(table: DataFrame) -> DataFrame:
    """A table that ends a statement, so that none grows too long; Spark does not need it."""
    return table


COUNTS_FIRST = False
"""Whether a job first counts narrow columns of all rows, and then only examines candidates of an
anomaly. DuckDB does; Spark would shuffle the rows once more."""


def sort_columns(order: Order) -> list[Column]:
    """An order for Spark; `engines.duckdb.job_sql.ordered` is the same for DuckDB."""
    return [f.col(name) if among is None else position(among, name) for name, among in order]


def position(names: Iterable[str], column: str) -> Column:
    """The index of a column's value in a list, from 1; 0 if it is not in the list."""
    return f.array_position(f.array(*(f.lit(name) for name in names)), f.col(column))


# Percentiles of values with counts.
#
# A running sum over the distinct values of a group gives the rank of each. A percentile lies
# between the values at two ranks (`trace.percentiles`).


def with_ranks(counts: DataFrame, group: Sequence[str]) -> DataFrame:
    """Add `first_rank`, the rank of the first of each value, from 0, and the group's `total`.

    Sorts the distinct values of each group.

    Args:
        counts: `value` and `number`, and the columns of `group`: a row per group and value.
        group: the columns that identify a group.
    """
    of_group = Window.partitionBy(*group)
    earlier = of_group.orderBy("value").rowsBetween(Window.unboundedPreceding, -1)
    return counts.withColumn(
        "first_rank", f.coalesce(f.sum("number").over(earlier), f.lit(0))
    ).withColumn("total", f.sum("number").over(of_group))


def rank_values(shares: Mapping[str, float]) -> list[Column]:
    """The values below and above each share of a group: its name with `_low` and `_high`.

    Args:
        shares: from 0 to 1, by their names.
    """
    columns = []
    for name, share in shares.items():
        low = f.floor(rank(share))
        high = f.least(low + 1, f.col("total") - 1)
        columns += [
            f.max(f.when(_has_rank(low), f.col("value"))).alias(f"{name}_low"),
            f.max(f.when(_has_rank(high), f.col("value"))).alias(f"{name}_high"),
        ]
    return columns


def rank(share: float) -> Column:
    """The rank of a share in its group; fractional between two ranks."""
    return f.lit(share).cast("double") * (f.col("total") - 1)


def interpolate(low: Column, high: Column, share: float) -> Column:
    """A percentile, interpolated linearly between two ranks as Spark does."""
    place = rank(share)
    return low + (high - low) * (place - f.floor(place))


def _has_rank(number: Column) -> Column:
    return (number >= f.col("first_rank")) & (number < f.col("first_rank") + f.col("number"))


# The keys that operations are watched under, such as `orders-0`, and their topics.


WATCH_KEYS = "watch_keys"
_PARTITION = r"-\d+\z"


def watch_keys(operations: DataFrame) -> Column:
    """The keys of an operation, an array of strings; null in traces of schema version 1."""
    if WATCH_KEYS in operations.columns:
        return f.col(WATCH_KEYS)
    return f.lit(None).cast("array<string>")


def topics(operations: DataFrame) -> Column:
    """The distinct topics of an operation's keys, in order; null where the keys are.

    A topic is the key without `-` and the partition's number; a key without these is one itself.
    """
    keys = watch_keys(operations)
    several = f.array_sort(f.array_distinct(f.transform(keys, _topic)))
    # Most operations have one key, and a function over an array costs more than the rest.
    return f.when(f.size(keys) == 1, f.array(_topic(keys[0]))).otherwise(several)


def _topic(key: Column) -> Column:
    return f.regexp_replace(key, _PARTITION, "")

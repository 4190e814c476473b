"""What differs between the engines that compute the jobs: all else of a job is the same for both.

A job is written in PySpark's functions, in those that Spark has and SQL can be generated from for
DuckDB. Where an engine has to be told how, not what, a job says so here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from purgatory.pipeline.result_rows import Order


def broadcast(table: DataFrame) -> DataFrame:
    """A table that is sent to all tasks when it is joined, where an engine has tasks."""
    hint = getattr(f, "broadcast", None)
    return table if hint is None else hint(table)


def persist(table: DataFrame) -> DataFrame:
    """A table that is computed once, however often it is read."""
    return table.persist()


def materialize(table: DataFrame) -> DataFrame:
    """A table at which a plan may end, so that no statement grows too long. Spark needs none."""
    return table


COUNTS_FIRST = False
"""Whether a job counts narrow columns of all rows, and looks only at those closer that may be an
anomaly. DuckDB does; Spark would shuffle the rows once more for it."""


def sort_columns(order: Order) -> list[Column]:
    """An order for Spark; `engines.duckdb.job_sql.ordered` is the same for DuckDB."""
    return [f.col(name) if among is None else position(among, name) for name, among in order]


def position(names: Iterable[str], column: str) -> Column:
    """The place of a column's value among some, from 1; 0 if it is none of them."""
    return f.array_position(f.array(*(f.lit(name) for name in names)), f.col(column))


# Which values stand at some ranks, where it is counted how often each value came.
#
# A running sum over the different values of a group tells which of them has which rank. A
# percentile lies between the values at two ranks (`trace.percentiles`).


def with_ranks(counts: DataFrame, group: Sequence[str]) -> DataFrame:
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


def rank_values(shares: Mapping[str, float]) -> list[Column]:
    """For each share the values of a group that it lies between: its name with `_low`, `_high`.

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
    """Where a share lies among all of a group: between two ranks, or at one."""
    return f.lit(share).cast("double") * (f.col("total") - 1)


def interpolate(low: Column, high: Column, share: float) -> Column:
    """A percentile between the values at the ranks below and above it, as Spark has it."""
    place = rank(share)
    return low + (high - low) * (place - f.floor(place))


def _has_rank(number: Column) -> Column:
    return (number >= f.col("first_rank")) & (number < f.col("first_rank") + f.col("number"))


# What operations were watched under: keys such as `orders-0`, and the topics that these are of.


WATCH_KEYS = "watch_keys"
_PARTITION = r"-\d+\z"


def watch_keys(operations: DataFrame) -> Column:
    """The keys of an operation, an array of strings; null where the trace does not tell them.

    Traces of schema version 1 don't have the column.

    Args:
        operations: the table whose column it is to be.
    """
    if WATCH_KEYS in operations.columns:
        return f.col(WATCH_KEYS)
    return f.lit(None).cast("array<string>")


def topics(operations: DataFrame) -> Column:
    """The topics of an operation's keys, in order and each once; null like the keys.

    A topic is the key without `-` and the partition's number; a key without these is one itself.
    """
    keys = watch_keys(operations)
    several = f.array_sort(f.array_distinct(f.transform(keys, _topic)))
    # Most operations have one key, and a function over an array costs more than the rest.
    return f.when(f.size(keys) == 1, f.array(_topic(keys[0]))).otherwise(several)


def _topic(key: Column) -> Column:
    return f.regexp_replace(key, _PARTITION, "")

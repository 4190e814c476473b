"""Expressions that the jobs share, and hints that differ between the engines.

A job is written in PySpark's functions, those from which SQL for DuckDB can be generated:
`make sql` replaces `persist` and `materialize`, and sets `COUNTS_FIRST` and `EXACT_IN_MEMORY`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from purgatory.pipeline.result_rows import Order


def broadcast(table: DataFrame) -> DataFrame:
    """A small table that Spark broadcasts when it is joined."""
    hint = getattr(f, "broadcast", None)
    return table if hint is None else hint(table)


FEW_ROWS = "spark.purgatory.fewRows"
"""The setting of a session for few rows, as the commands start it for short analyses."""


def has_few_rows(session: SparkSession) -> bool:
    """Whether a session is for so few rows that analyzing and compiling plans costs the most.

    What is read twice is then kept as a checkpoint, whose plan ends there, and not persisted, which
    leaves the plan as it is; and exact percentiles are computed in memory.
    """
    return session.conf.get(FEW_ROWS, "false") == "true"


def persist(table: DataFrame) -> DataFrame:
    """A table that is computed once, though it is read several times."""
    if has_few_rows(table.sparkSession):
        return table.localCheckpoint(eager=False)
    return table.persist()


def materialize(table: DataFrame) -> DataFrame:
    """A table that ends a statement, so that none grows too long; Spark does not need it."""
    return table


COUNTS_FIRST = False
"""Whether a job first counts narrow columns of all rows, and then only examines candidates of an
anomaly. DuckDB does; Spark would shuffle the rows once more."""

EXACT_IN_MEMORY = False
"""Whether all waits of a group fit the memory of one task, for exact percentiles. DuckDB packs them
as numbers; Spark's `percentile` has an object for each different one."""


def sort_columns(order: Order) -> list[Column]:
    """An order for Spark; `engines.duckdb.job_sql.order_by` is the same for DuckDB."""
    return [f.col(name) if among is None else position(among, name) for name, among in order]


def position(names: Iterable[str], column: str) -> Column:
    """The index of a column's value in a list, from 1; 0 if it is not in the list."""
    return f.array_position(f.array(*(f.lit(name) for name in names)), f.col(column))


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
